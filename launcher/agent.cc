#include "launcher/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <utility>

#include "base/readable.h"
#include "launcher/exit_code.h"
#include "launcher/infiniband.h"
#include "launcher/job_spec.h"
#include "launcher/process_tree.h"
#include "launcher/random_text.h"
#include "launcher/store_probe.h"

extern char** environ;

namespace ddp::launcher {
namespace {

constexpr std::chrono::seconds kHeartbeat{1};
/// For the last bytes to a master that does not read any more.
constexpr std::chrono::seconds kFlushTime{2};
constexpr char kKeeperDied[] = "the keeper of its agent was killed";

/// Counts a suspended machine, too.
rendezvous::NodeLease::Time boot_time() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

EnvVars own_environment() {
  return split_env(environ);
}

/// Where `@record` writes a worker's exception: a name that nobody can guess, of a file that exists only if
/// one was written, so that an agent that is killed leaves nothing behind.
std::string make_error_prefix() {
  const char* base = std::getenv("TMPDIR");
  const auto random = random_text(8);
  if (!random) return {};
  return std::string(base != nullptr && *base != '\0' ? base : "/tmp") + "/ddplaunch-" + *random + "-rank_";
}

}  // namespace

Agent::Agent(asio::io_context& loop, std::unique_ptr<ByteStream> stream, KeeperLink& keeper, Options options)
    : loop_(loop),
      options_(std::move(options)),
      keeper_(keeper),
      link_(loop.get_executor(), std::move(stream)),
      store_(loop.get_executor(),
             [this](std::string words) { link_.send(rendezvous::Notice{std::move(words)}); }),
      setup_(loop.get_executor()),
      tree_(loop.get_executor(), keeper),
      evidence_(loop.get_executor()),
      lease_(patience_, boot_time()),
      tick_(loop),
      attempt_over_(loop, Clock::time_point::max()),
      revoke_step_(loop),
      keeper_fd_(loop),
      signals_(loop, SIGTERM, SIGINT, SIGHUP) {}

Agent::~Agent() = default;

std::uint64_t Agent::clock_ns() {
  return static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
}

int Agent::run() {
  keeper_fd_.assign(::fcntl(keeper_.watch_fd(), F_DUPFD_CLOEXEC, 0));
  rendezvous::Hello hello;
  hello.hostname = options_.facts.hostname;
  hello.machine_id = options_.facts.machine_id;
  hello.pid = options_.facts.pid;
  hello.cpus = options_.facts.cpus;
  hello.gpus = options_.facts.gpus;
  hello.interfaces = options_.facts.interfaces;
  hello.clock_ns = clock_ns();
  if (options_.own) hello.workers = options_.own->workers;
  link_.send(hello);
  link_.on_ready([this] {
    if (workers_) workers_->resume_output();
  });
  // These wait before anything can end them: a link may be over with its first read.
  start_task(heartbeat());
  start_task(watch_keeper());
  start_task(watch_signals());
  start_task(link_.write_all());
  start_task(serve());
  loop_.run();  // returns when go_down has ended every task
  return exit_code_;
}

void Agent::start_task(Awaitable<> task) {
  asio::co_spawn(loop_, std::move(task), [](const std::exception_ptr& broken) {
    if (broken) std::terminate();  // no exception crosses an await here: this is a mistake of ours
  });
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
  // sshd closes our stdin when the keeper, its child, has ended; what we say still reaches the master.
  if (keeper_.keeper_lives()) {
    lose_master(why);
  } else {
    resign(kKeeperDied);
  }
}

void Agent::refuse(const Error& error) {
  link_.send(rendezvous::Refused{static_cast<std::uint8_t>(error.code), error.sys, error.text});
}

void Agent::handle(const rendezvous::JobStart& told) {
  const rendezvous::JobStart message = options_.own ? lay_over(told, *options_.own) : told;
  credit_.start(message.credit);
  begin_preparing(message);
  link_grace_ = std::chrono::milliseconds(message.link_grace_ms);
  lease_ = rendezvous::NodeLease(patience_, boot_time());
  hang_timeout_ = std::chrono::milliseconds(message.hang_timeout_ms);
  if (!message.setup.empty()) return start_task(set_up(message));
  accept(message, NodeJob::prepare(message, own_environment(), options_.directory));
}

void Agent::accept(const rendezvous::JobStart& message, Result<NodeJob> job) {
  if (!job) return refuse(job.error());
  job_ = std::move(*job);
  accepted_at_ = boot_time();
  // A frozen agent must not train on while the job goes on elsewhere; on the master's own machine nothing
  // can.
  local_ = message.local;
  leased_ = !local_;
  rendezvous::JobAccepted accepted{job_->program(), active_infiniband("")};
  accepted.no_infiniband = infiniband_trouble(accepted.infiniband, job_->env(), message.explicit_env, "");
  link_.send(accepted);
}

void Agent::handle(const rendezvous::OpenStore& message) {
  // Workers that are being ended have no use for a store any more; others of this node have.
  if (leaving_ || (attempt_running_ && !waiting_ && !workers_->stopping())) return;
  auto opened = store_.open(message);
  if (!opened) return refuse(opened.error());
  link_.send(*opened);
}

void Agent::handle(const rendezvous::Probe& message) {
  start_task(probe(message));
}

Awaitable<> Agent::probe(rendezvous::Probe request) {
  StoreWay way = co_await find_store(loop_.get_executor(), std::move(request.addresses), request.port,
                                     std::move(request.token), std::chrono::milliseconds(request.timeout_ms));
  link_.send(rendezvous::ProbeResult{request.attempt, std::move(way.address), std::move(way.failures),
                                     std::move(way.local)});
}

void Agent::handle(const rendezvous::Spawn& message) {
  if (!job_ || leaving_) return;
  const bool some_live = waiting_ && workers_->any_lives();
  if (attempt_running_ && !some_live) {  // the last of the attempt before is being cleaned up
    next_spawn_ = message;
    return;
  }
  // Also here, where another attempt may follow that this one must not run beside.
  leased_ = !local_ || message.max_restarts > 0;
  lease_.proven(accepted_at_);  // a slow disk may have kept us from answering a Ping before
  if (!begin_attempt(message)) return;
  if (!std::exchange(attempt_running_, true)) start_task(finish_attempt());
  // A restarted rank 0 goes on where the one before stopped reading.
  if ((stdin_ended_ || !stdin_pending_.empty()) && !std::exchange(stdin_busy_, true))
    start_task(feed_stdin());
}

/// Starts the workers, but for those that live on from the attempt before: they are told of it.
bool Agent::begin_attempt(const rendezvous::Spawn& message) {
  if (auto room = collectives_.make_room(message.local_world_size); !room)
    link_.send(rendezvous::Notice{"the workers get no DDPLAUNCH_COLLECTIVES: " + room.error().text, true});
  auto workers = job_->workers(message, static_cast<int>(options_.facts.cores), make_error_prefix(),
                               expect_workers(message.local_world_size), collectives_.path());
  if (!workers) {
    refuse(workers.error());
    if (attempt_running_) workers_->stop(std::chrono::milliseconds(0));
    return false;
  }
  if (workers->omp_threads && message.node_rank == 0 && message.attempt == 0) {
    link_.send(
        rendezvous::Notice{"OMP_NUM_THREADS is set to " + std::to_string(*workers->omp_threads) +
                           " for each worker (its share of the node's cores); export it to choose another"});
  }
  if (attempt_running_) workers_->let_go_of_ended();  // their output is the attempt's before
  attempt_ = message.attempt;
  first_rank_ = message.first_rank;
  ranks_ = message.local_world_size;
  waiting_ = false;
  lives_.begin_attempt();
  store_.workers_start();
  keep_error_files(std::move(workers->error_files));
  evidence_.begin(attempt_, first_rank_, error_files_);
  if (!attempt_running_) {
    workers_ = std::make_unique<WorkerGroup>(loop_.get_executor(), *this, tree_.begin(attempt_));
    link_.send(rendezvous::Notice{tree_.how(), true});
  }
  watch_for_hangs(workers->specs);
  tell_of_the_living();
  for (std::uint32_t local = 0; local < message.local_world_size; ++local)
    order_attempt(message, local);
  std::erase_if(workers->specs, [this](const WorkerSpec& spec) { return lives_.lives(spec.rank); });
  workers_->start(std::move(workers->specs));
  workers_->resume_output();
  return true;
}

/// True: that attempt was held back here until the last one's workers are gone, and is over before it began.
bool Agent::give_up_next(std::uint32_t attempt) {
  if (!next_spawn_ || next_spawn_->attempt != attempt) return false;
  next_spawn_.reset();
  link_.send(rendezvous::AttemptEnded{attempt, 0, {}});
  return true;
}

void Agent::handle(const rendezvous::Stop& message) {
  if (give_up_next(message.attempt)) return;
  if (workers_ && attempt_running_ && message.attempt == attempt_) {
    if (hang_guard_) hang_guard_->stop();
    if (worker_link_) worker_link_->stop({message.reason, message.grace_ms});
    const std::chrono::milliseconds grace(message.grace_ms);
    waiting_ = false;  // what they write from now on is the end of their last attempt
    workers_->resume_output();
    workers_->stop(grace);
    revoke_step_.cancel();
    evidence_.kills_from(Clock::now() + grace);
  }
}

void Agent::handle(const rendezvous::Signal& message) {
  if (workers_ && attempt_running_) workers_->signal_leaders(message.number);
}

void Agent::handle(const rendezvous::Leave& message) {
  if (std::exchange(leaving_, true)) return;
  if (options_.own) exit_code_ = message.code;
  last_words_ = message.text;
  start_task(go_down());
}

void Agent::handle(const rendezvous::Ping& message) {
  link_.send(rendezvous::Pong{message.sequence, clock_ns()});
  lease_.pinged(boot_time());
  if (leased_) mind_the_lease();
}

void Agent::handle(const rendezvous::Credit& message) {
  credit_.give(message.stream, message.bytes);
  if (workers_) workers_->resume_output();
}

void Agent::handle(const rendezvous::MasterAsleep&) {
  lease_.master_asleep();
  mind_the_lease();
  link_.send(rendezvous::Pong{rendezvous::kAsleep, clock_ns()});
}

void Agent::handle(const rendezvous::Stdin& message) {
  if (message.data.empty()) stdin_ended_ = true;
  stdin_pending_ += message.data;
  if (!std::exchange(stdin_busy_, true)) start_task(feed_stdin());
}

Awaitable<> Agent::feed_stdin() {
  while (!stdin_pending_.empty() && attempt_running_ && !letting_go_ && !waiting_) {
    std::string bytes = std::exchange(stdin_pending_, {});
    const auto size = static_cast<std::uint32_t>(bytes.size());
    co_await workers_->write_stdin(std::move(bytes));
    link_.send(rendezvous::StdinTaken{size});
  }
  if (stdin_ended_ && stdin_pending_.empty() && attempt_running_) co_await workers_->write_stdin({});
  stdin_busy_ = false;
}

// ---- an attempt ends

Awaitable<> Agent::finish_attempt() {
  co_await workers_->ended();
  while (letting_go_)  // it sees that nobody lives
    co_await attempt_over_.async_wait(kUseTuple);
  if (hang_guard_) {
    hang_guard_->stop();
    co_await hang_guard_->idle();  // its tools are no leftovers of the workers
  }
  // Whatever the workers left behind (daemons, loaders in their own sessions) ends with the attempt.
  const std::vector<LeftProcess> left = co_await tree_.end();
  if (evidence_.any()) tell_collectives();
  EvidenceCollector::Send tell = [this](const rendezvous::WorkerEvidence& found) { link_.send(found); };
  co_await evidence_.collect(std::move(tell));
  co_await link_.flushed();  // output first: the master takes AttemptEnded as the last word
  rendezvous::AttemptEnded ended;
  ended.attempt = attempt_;
  ended.left = static_cast<std::uint32_t>(left.size());
  for (const LeftProcess& process : left)
    ended.left_text += (ended.left_text.empty() ? "" : ", ") + process.text();
  link_.send(ended);
  for (const std::string& file : error_files_)
    ::unlink(file.c_str());
  attempt_running_ = waiting_ = false;
  attempt_over_.cancel();
  if (!next_spawn_) co_return;
  const rendezvous::Spawn next = *std::exchange(next_spawn_, std::nullopt);
  handle(next);
}

/// Of an attempt that failed: the master compares them, and names the rank that the others waited for.
void Agent::tell_collectives() {
  for (std::uint32_t local = 0; local < ranks_; ++local) {
    std::string log = collectives_.text(local, first_rank_ + local, attempt_);
    if (!log.empty())
      link_.send(rendezvous::WorkerCollectives{attempt_, first_rank_ + local, std::move(log)});
  }
}

// ---- the end

void Agent::lose_master(std::string_view why) {
  link_.close();
  // Nobody takes output any more; the pipes are drained all the same, so that no worker hangs in a write.
  credit_.lift();
  if (workers_) workers_->resume_output();
  if (std::exchange(leaving_, true)) return;
  exit_code_ = exit_code_of(Error{ErrorCode::kLinkLost, std::string(why), 0});
  start_task(go_down());
}

/// Whatever forces us to leave while the master listens: it is told why, and hears of our workers' ends.
void Agent::resign(std::string why, int signal) {
  if (std::exchange(leaving_, true)) return;
  const Error error{ErrorCode::kLinkLost, std::move(why), signal};
  refuse(error);
  last_words_ = error.text;
  exit_code_ = exit_code_of(error);
  start_task(go_down());
}

Awaitable<> Agent::go_down() {
  setup_.stop();
  tools_.stop();
  waiting_ = false;
  if (attempt_running_) {
    if (worker_link_)
      worker_link_->stop({"the agent leaves", static_cast<std::uint32_t>(link_grace_.count())});
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

/// The keeper kills what is left here when the lease is over and the grace has passed, whatever we do.
void Agent::mind_the_lease() {
  if (!leased_) return keeper_.pat();
  if (lease_.asleep()) return keeper_.set_lease(std::chrono::milliseconds(0));
  const auto left = lease_.ends_at() + link_grace_ - boot_time();
  keeper_.set_lease(
      std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(1)));
}

/// `late`: we could not do anything for a while ourselves.
bool Agent::master_lost(bool late) const {
  if (lease_.asleep()) return false;
  if (attempt_running_ && leased_) return lease_.over(boot_time());
  return !late && Clock::now() - link_.last_heard() > patience_;
}

Awaitable<> Agent::heartbeat() {
  while (!down_) {
    mind_the_lease();
    if (attempt_running_) reap_adopted(children());  // orphans of the workers would stay zombies otherwise
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
