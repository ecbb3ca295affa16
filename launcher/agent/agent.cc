#include "launcher/agent/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "base/readable.h"
#include "base/safe_text.h"
#include "launcher/agent/infiniband.h"
#include "launcher/agent/node_store.h"
#include "launcher/job/job_spec.h"
#include "launcher/keeper/process_tree.h"
#include "launcher/report/exit_code.h"

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kHeartbeat{1};
/// The time to send the last bytes to a master that may not read any more.
constexpr std::chrono::seconds kFlushTime{2};
constexpr char kKeeperDied[] = "the keeper of its agent was killed";

}  // namespace

Agent::Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperLink& keeper, Options options)
    : loop_(loop),
      options_(std::move(options)),
      keeper_(keeper),
      link_(loop.get_executor(), std::move(stream)),
      store_(loop.get_executor(),
             [this](std::string words) { link_.send(rendezvous::Notice{std::move(words)}); }),
      setup_(loop.get_executor()),
      disk_(loop.get_executor(), 1),
      tree_(loop.get_executor(), keeper),
      evidence_(loop.get_executor(), disk_),
      lease_(patience_, boot_now()),
      tick_(loop),
      attempt_over_(loop, Clock::time_point::max()),
      revoke_step_(loop),
      keeper_fd_(loop),
      signals_(loop, SIGTERM, SIGINT, SIGHUP) {}

Agent::~Agent() = default;

std::uint64_t Agent::clock_ns() {
  return static_cast<std::uint64_t>(steady_now().count());
}

int Agent::run() {
  keeper_fd_.assign(::fcntl(keeper_.watch_fd(), F_DUPFD_CLOEXEC, 0));
  rendezvous::Hello hello;
  hello.hostname = options_.facts.hostname;
  hello.machine_id = options_.facts.machine_id;
  hello.pid = options_.facts.pid;
  hello.keeper = static_cast<std::uint32_t>(keeper_.keeper());
  hello.pid_namespace = options_.facts.pid_namespace;
  hello.cpus = options_.facts.cpus;
  hello.gpus = options_.facts.gpus;
  hello.interfaces = options_.facts.interfaces;
  hello.clock_ns = clock_ns();
  if (options_.own) hello.workers = options_.own->workers;
  link_.send(hello);
  link_.on_ready([this] {
    if (workers_) workers_->resume_output();
  });
  // These tasks must wait before any event can end them: a link may close at its first read.
  spawn(loop_.get_executor(), heartbeat());
  spawn(loop_.get_executor(), watch_keeper());
  spawn(loop_.get_executor(), watch_signals());
  spawn(loop_.get_executor(), link_.write_all());
  spawn(loop_.get_executor(), serve());
  loop_.run();  // returns when go_down has ended every task
  return exit_code_;
}

// ---- the link

Awaitable<> Agent::serve() {
  std::string why;
  while (why.empty()) {
    for (;;) {
      auto message = link_.next();
      if (!message) {
        why = message.error().text;
        break;
      }
      if (!*message) break;
      std::visit([this](const auto& m) { handle(m); }, **message);
    }
    if (!why.empty()) break;
    const Result<> more = co_await link_.read_more();
    if (!more) why = more.error().text;
  }
  // sshd closes our stdin when its child, the keeper, has ended; the master still receives our messages.
  if (keeper_.is_keeper_alive()) {
    lose_master(why);
  } else {
    resign(kKeeperDied);
  }
}

void Agent::refuse(const Error& error) {
  link_.send(rendezvous::Refused{static_cast<std::uint8_t>(error.code), error.sys, error.text});
}

void Agent::handle(const rendezvous::JobStart& job_start) {
  const rendezvous::JobStart message = options_.own ? lay_over(job_start, *options_.own) : job_start;
  credit_.start(message.credit);
  begin_preparing(message);
  link_grace_ = std::chrono::milliseconds(message.link_grace_ms);
  lease_ = rendezvous::NodeLease(patience_, boot_now());
  hang_timeout_ = std::chrono::milliseconds(message.hang_timeout_ms);
  spawn(loop_.get_executor(), prepare(message));
}

void Agent::accept(const rendezvous::JobStart& message, Result<NodeJob> job, bool predecessor_gone) {
  if (!job) return refuse(job.error());
  job_ = std::move(*job);
  accepted_at_ = boot_now();
  // If this node freezes, its workers must not train on while the job continues elsewhere. On the master's
  // own machine, a freeze stops the master, too.
  local_ = message.local;
  leased_ = !local_;
  rendezvous::JobAccepted accepted{job_->program(), active_infiniband("")};
  accepted.no_infiniband = infiniband_trouble(accepted.infiniband, job_->env(), message.explicit_env, "");
  accepted.predecessor_gone = predecessor_gone;
  link_.send(accepted);
}

void Agent::handle(const rendezvous::OpenStore& message) {
  if (leaving_) return;
  // Workers that are being ended need no store; workers that wait for the next attempt do.
  if (attempt_running_ && !waiting_ && !workers_->stopping()) {
    return refuse({ErrorCode::kProtocol,
                   "the master asked for the store of attempt " + std::to_string(message.attempt) +
                       " while attempt " + std::to_string(attempt_) + " runs here",
                   0});
  }
  auto opened = store_.open(message);
  if (!opened) return refuse(opened.error());
  link_.send(*opened);
}

void Agent::handle(const rendezvous::Probe& message) {
  spawn(loop_.get_executor(), probe(message));
}

Awaitable<> Agent::probe(rendezvous::Probe request) {
  StoreRoute route =
      co_await find_store(loop_.get_executor(), std::move(request.addresses), request.port,
                          std::move(request.token), std::chrono::milliseconds(request.timeout_ms));
  link_.send(rendezvous::ProbeResult{request.attempt, std::move(route.address), std::move(route.failures),
                                     std::move(route.local)});
}

void Agent::handle(const rendezvous::Signal& message) {
  if (workers_ && attempt_running_) workers_->signal_leaders(message.number);
}

void Agent::handle(const rendezvous::Leave& message) {
  if (std::exchange(leaving_, true)) return;
  if (options_.own) exit_code_ = message.code;
  last_message_ = one_line(message.text);  // with --insecure, the master may be anyone
  spawn(loop_.get_executor(), go_down());
}

void Agent::handle(const rendezvous::Ping& message) {
  link_.send(rendezvous::Pong{message.sequence, clock_ns()});
  lease_.pinged(boot_now());
  if (leased_) renew_lease();
}

void Agent::handle(const rendezvous::Credit& message) {
  credit_.give(message.stream, message.bytes);
  if (workers_) workers_->resume_output();
}

void Agent::handle(const rendezvous::MasterAsleep&) {
  lease_.master_asleep();
  renew_lease();
  link_.send(rendezvous::Pong{rendezvous::kAsleep, clock_ns()});
}

void Agent::handle(const rendezvous::Stdin& message) {
  if (message.data.empty()) stdin_ended_ = true;
  stdin_pending_ += message.data;
  if (!std::exchange(stdin_busy_, true)) spawn(loop_.get_executor(), feed_stdin());
}

Awaitable<> Agent::feed_stdin() {
  while (!stdin_pending_.empty() && attempt_running_ && !leaving_attempt_ && !waiting_) {
    std::string bytes = std::exchange(stdin_pending_, {});
    const auto size = static_cast<std::uint32_t>(bytes.size());
    co_await workers_->write_stdin(std::move(bytes));
    link_.send(rendezvous::StdinTaken{size});
  }
  if (stdin_ended_ && stdin_pending_.empty() && attempt_running_) co_await workers_->write_stdin({});
  stdin_busy_ = false;
}

// ---- the end

void Agent::lose_master(std::string_view why) {
  link_.close();
  // No output is sent any more, but the pipes are drained, so that no worker hangs in a write.
  credit_.lift();
  if (workers_) workers_->resume_output();
  if (std::exchange(leaving_, true)) return;
  exit_code_ = exit_code_of(Error{ErrorCode::kLinkLost, std::string(why), 0});
  spawn(loop_.get_executor(), go_down());
}

/// Leaves while the master still listens: reports the reason, and then the ends of the workers.
void Agent::resign(std::string why, int signal) {
  if (std::exchange(leaving_, true)) return;
  const Error error{ErrorCode::kLinkLost, std::move(why), signal};
  refuse(error);
  last_message_ = error.text;
  exit_code_ = exit_code_of(error);
  if (options_.own && signal != 0) {  // the ddplaunch of this node ends as any program that was stopped
    last_message_ = "stopped by " + signal_name(signal) + "; the job has lost this node";
    exit_code_ = exit_code_of(Error{ErrorCode::kCancelled, "", signal});
  }
  spawn(loop_.get_executor(), go_down());
}

Awaitable<> Agent::go_down() {
  disk_.stop();
  setup_.stop();
  tools_.stop();
  waiting_ = false;
  if (attempt_running_) {
    if (worker_link_)
      worker_link_->stop({"the agent exits", static_cast<std::uint32_t>(link_grace_.count())});
    workers_->resume_output();
    workers_->stop(link_grace_);
    revoke_step_.cancel();
  }
  while (attempt_running_ || preparing_)
    co_await attempt_over_.async_wait(kUseTuple);
  worker_link_.reset();
  down_ = true;
  tick_.expires_after(kFlushTime);  // the heartbeat sees `down_` and closes a link that does not drain
  co_await link_.flushed();
  link_.close();
  store_.stop();
  tick_.cancel();
  error_code ignored;
  keeper_fd_.cancel(ignored);
  signals_.cancel(ignored);
}

/// The keeper kills the remaining workers when lease and grace have passed, whether this agent runs or not.
void Agent::renew_lease() {
  if (!leased_) return keeper_.renew();
  if (lease_.asleep()) return keeper_.set_lease(std::chrono::milliseconds(0));
  const auto left = lease_.ends_at() + link_grace_ - boot_now();
  keeper_.set_lease(
      std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(1)));
}

/// `late`: this process could not run for a while, so the silence may be its own fault.
bool Agent::master_lost(bool late) const {
  if (lease_.asleep()) return false;
  if (attempt_running_ && leased_) return lease_.over(boot_now());
  return !late && Clock::now() - link_.last_heard() > patience_;
}

Awaitable<> Agent::heartbeat() {
  while (!down_) {
    renew_lease();
    // Orphans of workers would stay zombies otherwise. A worker that is being started is not a known child.
    if (attempt_running_ && !workers_->starting()) reap_adopted(children());
    tick_.expires_after(kHeartbeat);
    const Clock::time_point due = tick_.expiry();
    co_await tick_.async_wait(kUseTuple);
    if (master_lost(Clock::now() > due + kHeartbeat)) lose_master("the master was silent for too long");
  }
  while (!link_.closed()) {
    const auto [error] = co_await tick_.async_wait(kUseTuple);
    if (!error) link_.close();
  }
}

Awaitable<> Agent::watch_keeper() {
  const error_code error = co_await until_readable(keeper_fd_);
  if (!error) resign(kKeeperDied);
}

Awaitable<> Agent::watch_signals() {
  const auto [error, number] = co_await signals_.async_wait(kUseTuple);
  if (!error) resign("its agent was stopped by " + signal_name(number), number);
}

}  // namespace ddp::launcher
