// The Master in the order of a job: what it is made of, run(), decisions of the Supervisor carried out, the
// user, the report, and the control socket. Nodes are in master_nodes.cc.
#include "launcher/master/master.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <thread>
#include <utility>

#include "base/child_process.h"
#include "base/clock.h"
#include "base/crypto.h"
#include "base/program.h"
#include "base/text.h"
#include "launcher/control/history_files.h"
#include "launcher/keeper/process_table.h"
#include "launcher/master/user_input.h"
#include "launcher/output/output_file.h"
#include "launcher/report/exit_report.h"
#include "launcher/report/job_status.h"
#include "launcher/report/report_json.h"
#include "remote/start/resolver.h"

namespace ddp::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLastTasks{500};
/// The time for `tee` to end at the Ctrl-C that this process got, too.
constexpr milliseconds kTeeEnds{200};
constexpr milliseconds kForEver = std::chrono::hours(24 * 365);
/// Longest interval; short timeouts need more frequent pings.
constexpr milliseconds kPingEvery{1'000};
constexpr int kPingsInTimeout = 6;
/// Time for the reader of the last lines.
constexpr seconds kLastText{2};
/// Time for a collector to take the last metrics and spans.
constexpr seconds kLastOtlp{1};
constexpr std::size_t kMostWarnings = 20;
/// Time for a disk that accepts nothing.
constexpr seconds kDeadDisk{10};

std::vector<std::string> hook_env(const JobSpec& spec) {
  std::vector<std::string> env = own_environment();
  std::erase_if(env, [](const std::string& entry) {  // of a job that has started this one
    constexpr std::string_view kOurs[] = {"DDPLAUNCH_JOB_",
                                          "DDPLAUNCH_EVENT=", "DDPLAUNCH_EXIT_CODE=", "DDPLAUNCH_CAUSE"};
    return std::ranges::any_of(kOurs, [&](std::string_view name) { return entry.starts_with(name); });
  });
  env.insert(env.end(), {"DDPLAUNCH_JOB_ID=" + spec.job_id, "DDPLAUNCH_JOB_DIR=" + spec.job_dir});
  return env;
}

constexpr std::string_view kWarning = "warning: ";

/// Lists of warnings name them as such.
std::string without_prefix(std::string_view warning) {
  return std::string(warning.substr(warning.starts_with(kWarning) ? kWarning.size() : 0));
}

/// Scripts read the last line of stderr after a failure.
std::string last_line(const ExitReport& report) {
  return report.exit_code == 0 ? "" : report.text.substr(report.text.rfind('\n', report.text.size() - 2) + 1);
}

}  // namespace

Master::Master(asio::io_context& loop, const JobSpec& spec, Options options, remote::Transport& remote,
               remote::Transport& local, JobDir job_dir)
    : loop_(loop),
      spec_(spec),
      began_(steady_now()),
      began_at_(std::chrono::system_clock::now()),
      run_(std::move(options.run)),
      files_(JobWriter::start(
          loop.get_executor(), std::move(job_dir), [this](const std::string& words) { say(words); },
          [this] { give_all_credit(); }, std::move(options.first_task))),
      log_(*files_, spec),
      console_(
          loop.get_executor(), [this] { give_all_credit(); }, spec.output.console),
      output_(
          *files_, console_, spec.output, [this](std::uint32_t rank) { return source_of(rank); },
          [this] { return static_cast<std::uint32_t>(supervisor_.nodes().world().world_size); }),
      supervisor_(spec),
      nodes_(loop, spec.hosts, supervisor_.nodes().size(), remote, local, std::move(options.start), *this),
      deadline_(loop),
      terminal_timer_(loop),
      signals_(loop),
      stdin_(loop.get_executor()),
      queries_(loop, supervisor_.nodes(), nodes_),
      hooks_(loop.get_executor(),
             {spec.hooks, hook_env(spec), [this](const std::string& words) { say(words); },
              [this](const std::string& text) {
                files_->append({0, 0, 0, kHooks}, text);
              }}),
      metrics_(std::move(options.metrics)),
      metrics_linger_(options.metrics_linger),
      watch_(spec.watch.empty() ? std::nullopt : std::optional<LineWatch>(spec.watch)),
      progress_(began_, hang_limits(spec).shortest()),
      all_run_(std::move(options.all_run)) {
  for (const std::string& warning : options.warnings)
    say(warning);
  add_signals(signals_, {SIGINT, SIGTERM, SIGHUP, SIGTSTP, SIGCONT, SIGUSR1, SIGUSR2});
  if (options.otlp) start_otlp(std::move(*options.otlp));
  if (options.control) control_.emplace(loop, std::move(*options.control), control_handlers(), ::geteuid());
}

Master::~Master() = default;

/// In this order: the decisions, until the Supervisor has finished; the report, before any access to a disk;
/// the files; the hooks, which may read the files; and last what a slow reader has not taken yet. From the
/// report on, a signal ends the process with the report's exit code, so that nothing that hangs can hold the
/// user.
int Master::run() {
  // Reach the nodes: each link starts an agent.
  carry_out(supervisor_.start(steady_now()));
  nodes_.start_all(spec_.start_timeout);
  spawn(loop_.get_executor(), watch_signals());
  nodes_.ping_every(std::min(kPingEvery, std::min(spec_.node_timeout, node_lease(spec_)) / kPingsInTimeout));
  // Agree and run: the supervisor decides on each message, and stops the loop when it has finished
  // (carry_out).
  loop_.run();
  end_tasks();
  console_.resume();  // the shell of a suspended job reports its end, too
  continue_job_control_parent();
  output_.finish_all();
  // Report: the cause to the terminal, then the files, then the rest of the output.
  const ExitReport report = show_report();
  console_.flush(2, kLastText);  // the cause is printed even if nobody reads stdout
  // Nobody reads stderr any more, as after Ctrl-C in `ddplaunch … 2>&1 | tee`, which ends `tee`, too.
  if (!console_.uses_terminal() && console_.use_terminal()) console_.write(2, report.text);
  end_at_signals_with(report.exit_code, "");
  settle_files(report);
  finish_hooks(report);
  // After the user's signal the user waits for the prompt. Otherwise a pager may read the output for as long
  // as it likes.
  const milliseconds patience = supervisor_.end().stop_signal != 0 ? milliseconds(kLastText) : kForEver;
  const bool shown = console_.flush(1, patience);
  if (!shown)
    console_.write(
        2, "ddplaunch: warning: stdout was not read; the rest of the output is only in the job's files\n");
  warn_of_lost_output();
  const bool flushed = console_.flush(2, patience);
  if (shown && flushed) {
    console_.close();
  } else {
    console_.abandon();
  }
  files_->close(kLastText);
  serve_last_metrics(report);
  // The exit code is settled. A signal between here and the end of main would replace it.
  keep_signals_waiting();
  return report.exit_code;
}

/// Makes every task end. Tasks that wait for a dead connection are not awaited.
void Master::end_tasks() {
  queries_.end();
  answer_hang();
  if (control_) control_->close();
  nodes_.close();
  output_.stop_timers();
  error_code ignored;
  signals_.cancel(ignored);
  stdin_.stop();
  terminal_timer_.cancel();
  deadline_.cancel();
  loop_.restart();
  loop_.run_for(kLastTasks);
}

// ---- decisions

void Master::step(const job::Event& event) {
  carry_out(supervisor_.step(event, steady_now()));
}

void Master::carry_out(job::Actions actions) {
  for (job::Action& action : actions) {
    if (auto* message = std::get_if<job::ToNode>(&action)) {
      auto* start = std::get_if<rendezvous::JobStart>(&message->message);
      if (start != nullptr && !start->predecessor.empty())
        // Filled in here, because only the links know which keepers on that machine are alive.
        start->keepers = live_keepers_beside(message->node);
      nodes_[message->node]->send(message->message);
    } else if (auto* drop = std::get_if<job::Disconnect>(&action)) {
      NodeLink& node = *nodes_[drop->node];
      if (node.opened())
        node.close();
      else
        nodes_.cancel_starts();  // only at the end of the job, when all starts are obsolete
    } else if (const auto* again = std::get_if<job::Recall>(&action)) {
      nodes_.start_again(again->node, supervisor_.nodes()[again->node].name, spec_.start_timeout);
    } else if (const auto* lost = std::get_if<job::SweepNode>(&action)) {
      sweep(lost->node);
    } else if (auto* words = std::get_if<job::PrintLine>(&action)) {
      const bool watched = !words->terminal_only || console_.is_terminal(2);
      watched ? say(words->text) : log_.step(words->text);
    } else if (const auto* waiting = std::get_if<job::Waiting>(&action)) {
      show_waiting(*waiting);
    } else if (auto* step_done = std::get_if<job::Detail>(&action)) {
      spec_.verbose ? say(step_done->text) : log_.step(step_done->text);
    } else if (auto* dump = std::get_if<job::Dump>(&action)) {
      files_->append({dump->attempt, dump->rank, 0, kHangText}, dump->text);
    } else if (const auto* event = std::get_if<JournalEvent>(&action)) {
      record(*event);
    } else if (std::holds_alternative<job::HangAnswered>(action)) {
      answer_hang();
    }
  }
  // After all actions: the node must get its Spawn before the first byte of stdin.
  if (supervisor_.state() == Supervisor::State::kRunning && spec_.stdin_to_rank0) feed_stdin();
  if (supervisor_.finished()) loop_.stop();
  arm_deadline();
}

/// Feeds the launcher's stdin to the node of the first rank 0, for the whole job. A later rank 0 on another
/// node gets end of file.
void Master::feed_stdin() {
  const MasterLinks::Link link = nodes_[supervisor_.nodes().node_of_rank(0)];
  if (link == stdin_link_ || link == stdin_ended_link_) return;
  if (stdin_link_) {
    stdin_ended_link_ = link;
    return link->send(rendezvous::Stdin{});
  }
  stdin_link_ = link;
  spawn(loop_.get_executor(), stdin_.run(link->connection(), [this](const std::string& text) { say(text); }));
}

void Master::arm_deadline() {
  const auto deadline = supervisor_.deadline();
  if (!deadline) {
    deadline_.cancel();
    return;
  }
  deadline_.expires_at(Clock::time_point(*deadline));
  deadline_.async_wait([this](const error_code& cancelled) {
    if (cancelled) return;
    note_start_steps();
    step(job::Tick{});
  });
}

/// A live row of a terminal shows each state. A log gets only some.
void Master::show_waiting(const job::Waiting& waiting) {
  if (console_.shows_rows(2)) {
    std::vector<LiveRow> rows;
    if (!waiting.text.empty()) rows.push_back({"ddplaunch: " + waiting.text, ""});
    console_.show(2, std::move(rows));
    if (waiting.due) log_.said(waiting.text);
  } else if (waiting.due) {
    say(waiting.text);
  }
}

// ---- the user

Awaitable<> Master::watch_signals() {
  for (;;) {
    const auto [error, number] = co_await signals_.async_wait(kUseTuple);
    if (error) co_return;
    count_signal(number);
    note_start_steps();
    if (number == SIGTSTP)
      leave_terminal();
    else if (number == SIGCONT)
      console_.resume();
    else
      step(job::UserSignal{number, false, signal_sender(number)});
    if (number == SIGINT) repeat_on_terminal();
  }
}

/// Ctrl-C also ends `tee` behind stderr, and the answer to it is lost in the pipe. It is repeated on the
/// terminal when `tee` has ended, for which a busy machine needs a while.
void Master::repeat_on_terminal(int looks) {
  terminal_timer_.expires_after(kTeeEnds);
  terminal_timer_.async_wait([this, looks](error_code cancelled) {
    if (cancelled || console_.uses_terminal()) return;
    if (console_.use_terminal())
      console_.write(2, last_said_);
    else if (looks > 1)
      repeat_on_terminal(looks - 1);
  });
}

/// Ctrl-Z stops only the process that the shell knows. The job goes on: nodes lose no master, and connections
/// to them stay alive.
void Master::leave_terminal() {
  if (!has_job_control_parent()) return say("Ctrl-Z is ignored: no shell here could continue ddplaunch");
  say("suspended; the job goes on without this terminal (`fg` to resume)");
  console_.suspend();
  stop_job_control_parent();
}

/// Warns as soon as the loss is seen, and at the latest at the end.
void Master::warn_of_lost_output() {
  const int error = console_.broken(1);
  if (error == 0 || std::exchange(output_lost_, true)) return;
  say("warning: " + system_error(error, "standard output").text + "; the job's output is in the files only");
}

void Master::say(std::string_view text) {
  log_.said(text);
  last_said_ = "ddplaunch: " + std::string(text) + "\n";
  console_.write(2, last_said_);
  if (text.starts_with(kWarning)) warnings_.push_back(without_prefix(text));
  if (warnings_.size() > kMostWarnings) warnings_.pop_front();
}

void Master::record(const JournalEvent& event) {
  const std::string line = journal_line(event, ++journal_id_, std::chrono::system_clock::now());
  files_->append({0, 0, 0, kJournal}, line);
  progress_.on_event(event, steady_now());
  if (watch_ && event.kind == JournalEvent::Kind::kAttemptEnded)
    for (const std::string& text : watch_->take_counts())
      say(std::string(kWarning) + text);
  if (spans_) {
    std::string spans = spans_->on_event(event, std::chrono::system_clock::now());
    if (!spans.empty()) otlp_->send_spans(std::move(spans));
  }
  if (event.kind == JournalEvent::Kind::kAttemptRunning && all_run_) std::exchange(all_run_, nullptr)();
  if (spec_.hooks.empty()) return;
  // At the begin of another attempt the failures are those of the attempt before.
  const JobEnd& end = supervisor_.end();
  const bool again = event.kind == JournalEvent::Kind::kAttemptStarted && !end.earlier.empty();
  const bool wanted = !hook_event(event, false).empty();
  hooks_.on_event(event, line, again ? &end.earlier.back() : wanted ? cause_of(end) : nullptr);
}

void Master::say_host(const NodeLink& node, std::string_view line) {
  const std::string text = supervisor_.nodes()[node.index].name + ": " + std::string(line);
  log_.step(text);
  console_.write(2, text + "\n");
}

LineSource Master::source_of(std::uint32_t rank) const {
  const std::size_t index = supervisor_.nodes().node_of_rank(rank);
  const rendezvous::RankAssignment& ranks = *supervisor_.nodes().assignment(index);
  LineSource source;
  source.host = supervisor_.nodes()[index].name;
  source.rank = static_cast<int>(rank);
  source.local_rank = source.rank - ranks.first_rank;
  source.node_rank = ranks.node_rank;
  return source;
}

JobFacts Master::facts() const {
  JobFacts facts;
  facts.version = version();
  facts.job_id = spec_.job_id;
  facts.job_dir = spec_.job_dir;
  for (const rendezvous::RankAssignment& assignment : supervisor_.nodes().world().assignments)
    facts.nodes.push_back(supervisor_.nodes()[assignment.host].name);
  for (std::size_t i = 0; facts.nodes.empty() && i < nodes_.size(); ++i)
    facts.nodes.push_back(supervisor_.nodes()[i].name);
  facts.world_size = supervisor_.nodes().world().world_size;
  facts.attempts = static_cast<int>(supervisor_.nodes().attempt()) + 1;
  facts.began = began_;
  facts.ended = steady_now();
  const JobProgress::Figures progress = progress_.figures(facts.ended);
  facts.goodput = progress.goodput();
  facts.step = progress.step;
  facts.step_seconds = progress.step_seconds;
  facts.loss = progress.loss;
  facts.usage = history_.summary();
  facts.warnings.assign(warnings_.begin(), warnings_.end());
  facts.ended_at = std::chrono::system_clock::now();
  return facts;
}

void Master::record_point() {
  const auto point = history_.take_point();
  if (!point) return;
  const std::string line = sample_line(*point, ++journal_id_, std::chrono::system_clock::now());
  files_->append({0, 0, 0, kJournal}, line);
}

/// Keeps the last stderr lines of those of the ranks that failed, because they show the cause. Call it before
/// a new attempt starts these logs over.
void Master::keep_last_output(int first_rank, int count) {
  for (int rank = first_rank; rank < first_rank + count; ++rank) {
    const Failure* failure = supervisor_.worker_failure(rank);
    if (failure == nullptr) continue;
    const auto number = static_cast<std::uint32_t>(rank);
    auto lines = output_.last_stderr(failure->attempt, number);
    supervisor_.set_last_output(rank, std::move(lines), output_.stderr_file(failure->attempt, number));
  }
}

/// Shows the report before any access to a disk, which may hang.
ExitReport Master::show_report() {
  keep_last_output(0, supervisor_.nodes().world().world_size);
  ExitReport report = make_exit_report(supervisor_.end());
  const auto now = steady_now();
  const JobProgress::Figures progress = progress_.figures(now);
  history_.record_end(progress, supervisor_.nodes().attempt(), now);
  record_point();
  const RunSummary summary{now - began_, output_bytes_, progress.goodput(), usage_text(history_.summary())};
  if (!spec_.quiet) report.text = text_with_summary(report, supervisor_.end(), summary, spec_.verbose);
  job_end_ = {std::chrono::system_clock::now(), report.exit_code};
  // Hooks, or a pager that reads the output, may take hours from here.
  if (metrics_) metrics_->publish(metrics_text(status()));
  record({.kind = JournalEvent::Kind::kJobEnded, .reason = report.why, .exit_code = report.exit_code});
  log_.ended(report.text);
  console_.write(2, report.text);
  note_tensorboard();
  return report;
}

std::string Master::history_lines(const JobFacts& known) const {
  OwnMachine own{host_name(), {}};
  for (std::size_t i = 0; i < spec_.hosts.size(); ++i)
    if (spec_.launcher == LauncherKind::kLocal || is_localhost(spec_.hosts[i]))
      own.names.push_back(supervisor_.nodes()[i].name);
  std::string lines;
  for (const HostFault& fault : host_faults(supervisor_.end(), known, own))
    lines += fault_line(fault);
  return lines;
}

/// Completes the files with their last bytes and the report, as far as the disk accepts them.
void Master::settle_files(const ExitReport& report) {
  const JobFacts known = facts();
  std::vector<ReportFile> files{{spec_.job_dir + "/report.json", 0600, true}};
  if (spec_.report_path == kReportToStdout) {
    console_.write(1, report_json(supervisor_.end(), report, known));
  } else if (!spec_.report_path.empty()) {
    files.push_back({spec_.report_path});
  }
  // Last, since its directory may be on a disk of its own, and the report must not wait for it.
  const std::string history = spec_.host_history.empty() ? "" : history_lines(known);
  // How many of `files` are written. It says later on which disk the writing hangs.
  const auto done = std::make_shared<std::atomic<std::size_t>>(0);
  // Copies, since the thread of a dead disk may outlive this object.
  const JobWriter::LastTask write = [end = supervisor_.end(), report, known, files, done, history,
                                     place = spec_.host_history](const std::string& lost) {
    JobFacts complete = known;
    if (!lost.empty()) complete.warnings.push_back(without_prefix(lost));
    auto warnings = write_reports(report_json(end, report, complete),
                                  brief_report_json(end, report, complete), files, *done);
    if (history.empty()) return warnings;
    if (const auto added = append_host_history(place, history); !added)
      warnings.push_back("warning: the host history was not written: " + added.error().text);
    return warnings;
  };
  auto warnings = files_->finish(write, kLastText);
  if (warnings && warnings->empty()) return;
  // The disk of the first path may also still receive the job's output.
  const auto disk = [&] {
    const std::size_t written = *done;
    if (written == files.size() && !history.empty()) return spec_.host_history;
    return written == 1 && files.size() == 2 ? files[1].path : spec_.job_dir;
  };
  if (!warnings) {
    end_at_signals_with(report.exit_code,
                        last_line(report));  // before the user reads that a signal is possible
    say("waiting for the disk of " + disk() + " (Ctrl-C: exit without waiting)");
    warnings = files_->finish(write, kDeadDisk);
  }
  if (!warnings) {
    std::string missing;
    for (std::size_t i = *done; i < files.size(); ++i)
      missing += (i == 0 ? "report.json" : files[i].path) + ", ";
    if (!history.empty()) missing += "failures of hosts, ";
    warnings = {"warning: the disk of " + disk() + " accepts no data for " + format_duration(kDeadDisk) +
                "; not written: " + missing + std::to_string(files_->backlog()) + " bytes of output"};
  }
  for (const std::string& warning : *warnings)
    say(warning);
  console_.write(2, last_line(report));
}

/// Prometheus reads a job at its own pace, and would miss how it ended. A signal ends the wait with the
/// process.
void Master::serve_last_metrics(const ExitReport& report) {
  if (otlp_) {
    send_otlp_metrics();
    end_at_signals_with(report.exit_code, "");
    otlp_->finish(kLastOtlp);
  }
  if (!metrics_ || metrics_linger_.count() == 0) return;
  end_at_signals_with(report.exit_code, "");
  std::this_thread::sleep_for(metrics_linger_);
}

/// Hands what others read of the progress to their threads, once a second.
void Master::publish_second() {
  if (metrics_) metrics_->publish(metrics_text(status()));
  note_tensorboard();
  if (otlp_ && steady_now() >= otlp_due_) {
    otlp_due_ = steady_now() + OtlpSender::kEvery;
    send_otlp_metrics();
  }
}

void Master::note_tensorboard() {
  if (spec_.output.tensorboard.empty()) return;
  const std::string events =
      tensorboard_.add(progress_.figures(steady_now()), std::chrono::system_clock::now());
  if (!events.empty()) files_->append({0, 0, 0, kTensorBoard}, events);
}

void Master::start_otlp(OtlpTarget target) {
  const auto ids = random_text(24);
  target.resource.emplace_back("service.version", version());
  target.resource.emplace_back("service.instance.id", run_);
  auto sender = OtlpSender::start(
      std::move(target),
      [](const std::string& host, std::chrono::steady_clock::time_point deadline) {
        return remote::find_addresses(host, AF_UNSPEC, deadline);
      },
      [this](const std::string& text) { asio::post(loop_, [this, text] { say(text); }); });
  if (!ids || !sender)
    return say("warning: " + (ids ? sender.error() : ids.error()).text + "; OTLP is not used");
  otlp_.emplace(std::move(*sender));
  spans_.emplace(otlp_->resource(), *ids, spec_.job_id, began_at_);
}

void Master::send_otlp_metrics() {
  otlp_->send_metrics(
      otlp_metrics(metrics_of(status()), otlp_->resource(), began_at_, std::chrono::system_clock::now()));
}

/// Waits for the hooks that run, and for those of the end. Each has its time, and a signal ends the wait,
/// also the one for a last reader of metrics.
void Master::finish_hooks(const ExitReport& report) {
  // Events of the job are old news once it is over, except the end itself.
  hooks_.drop_waiting();
  if (hooks_.idle()) return;
  const std::string before = last_said_;
  loop_.restart();
  catch_signals_again(signals_);  // a hook may have children that its own end does not end
  signals_.async_wait([this](const error_code& cancelled, int) {
    if (cancelled) return;
    hooks_.stop();
    metrics_linger_ = {};  // the user waits for the prompt
  });
  while (!hooks_.idle() && loop_.run_one() > 0) {
  }
  signals_.cancel();
  loop_.poll();
  end_at_signals_with(report.exit_code, "");
  if (last_said_ != before) console_.write(2, last_line(report));
}

namespace {

const char* name_of(Supervisor::State state) {
  switch (state) {
    case Supervisor::State::kConnecting: return "connecting";
    case Supervisor::State::kBackingOff: return "waiting to restart";
    case Supervisor::State::kStarting: return "starting";
    case Supervisor::State::kRunning: return "running";
    case Supervisor::State::kStopping: return "stopping";
    case Supervisor::State::kEnding:
    case Supervisor::State::kLeaving:
    case Supervisor::State::kFinished: return "ending";
  }
  return "";
}

const char* name_of(const NodeRecords::Node& node) {
  if (node.lost) return "lost";
  switch (node.state) {
    case NodeRecords::State::kConnecting: return node.start_step;
    case NodeRecords::State::kUp: return "preparing";
    case NodeRecords::State::kAccepted: return "ready";
    case NodeRecords::State::kSpawned: return "running";
    case NodeRecords::State::kWaiting: return "waiting";
    case NodeRecords::State::kEnded: return "ended";
    case NodeRecords::State::kLeaving: return "leaving";
    case NodeRecords::State::kGone: return "gone";
  }
  return "";
}

/// Returns which process has asked, over the control socket, to stop the job.
std::string requester_text(bool now, pid_t pid, uid_t uid) {
  const auto process = read_process(pid);
  std::string text = "a request (";
  if (process && process->comm == "ddplaunch")
    text = now ? "`ddplaunch stop --now` (" : "`ddplaunch stop` (";
  else if (process)
    text += one_line(process->comm) + ", ";
  return text + process_text(pid, uid) + " on " + host_name() + ")";
}

}  // namespace

JobStatus Master::status() const {
  const NodeRecords& nodes = supervisor_.nodes();
  JobStatus status;
  status.job = spec_.job_id;
  status.run = run_;
  status.started = began_at_;
  status.end = job_end_;
  status.state = job_end_ ? "ended" : name_of(supervisor_.state());
  if (supervisor_.end().stop_signal != 0) status.why = why_stopped(supervisor_.end());
  status.age = steady_now() - began_;
  status.world_size = nodes.world().world_size;
  status.attempt = nodes.attempt();
  status.restarts = supervisor_.end().restarts;
  status.max_restarts = spec_.max_restarts;
  status.output_bytes = output_bytes_;
  status.directory = spec_.job_dir;
  const auto now = steady_now();
  status.progress = progress_.figures(now);
  status.usage = history_.usage(now);
  const JobEnd& end = supervisor_.end();
  if (const Failure* const cause = cause_of(end))
    status.failure = *cause;
  else if (!end.earlier.empty())
    status.failure = end.earlier.back();
  // Of an attempt that is being stopped nobody has taken them yet.
  if (status.failure && status.failure->of_worker() && status.failure->last_stderr.empty())
    status.failure->last_stderr =
        output_.last_stderr(status.failure->attempt, static_cast<std::uint32_t>(status.failure->rank));
  if (end.hang && end.hang->kind != HangVerdict::Kind::kActive) status.hang = end.hang;
  const bool stalled = status.hang && status.hang->kind == HangVerdict::Kind::kStalled;
  if (!job_end_ && (stalled || status.progress.stalled > status.progress.stalled.zero()))
    status.state = "stalled";
  status.warnings.assign(warnings_.begin(), warnings_.end());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    JobStatus::NodeStatus& node = status.nodes.emplace_back();
    node.name = nodes[i].name;
    node.state = name_of(nodes[i]);
    if (const rendezvous::NodeSample* const sample = history_.sample_of(i, now)) node.usage = *sample;
    if (nodes_[i]->live()) node.silence = NodeLink::Clock::now() - nodes_[i]->connection().last_heard();
    if (const rendezvous::RankAssignment* ranks = nodes.assignment(i)) {
      node.first_rank = ranks->first_rank;
      node.ranks = ranks->local_world_size;
      const auto first = static_cast<std::uint32_t>(node.first_rank);
      const auto count = static_cast<std::uint32_t>(node.ranks);
      node.ended = static_cast<int>(supervisor_.ranks().ended(first, count));
      if (!nodes[i].lost) node.running = static_cast<int>(supervisor_.ranks().running(first, count));
      for (int rank = node.first_rank; rank < node.first_rank + node.ranks; ++rank) {
        const auto number = static_cast<std::uint32_t>(rank);
        auto& report = node.reports.emplace_back(progress_.report_of(number));
        if (report) report->ended = supervisor_.ranks().ended(number, 1) > 0;
        const Failure* const failure = supervisor_.worker_failure(rank);
        if (failure != nullptr && !failure->stopped_by_us) ++node.failed;
      }
    }
  }
  return status;
}

ControlHandlers Master::control_handlers() {
  ControlHandlers handlers;
  handlers.status = [this] { return status_json(status()); };
  handlers.metrics = [this] { return metrics_text(status()); };
  handlers.stop = [this](bool now, pid_t pid, uid_t uid) { stop(now, requester_text(now, pid, uid)); };
  handlers.ask_workers = [this](const WorkerRequest& request, ControlHandlers::WorkersAnswered done) {
    return queries_.start(request, supervisor_.state() == Supervisor::State::kRunning, std::move(done));
  };
  handlers.ask_hang = [this](ControlHandlers::HangAnswered done) {
    hang_askers_.push_back(std::move(done));
    step(job::AskHang{});
  };
  handlers.cancel = [this](std::uint32_t number) { queries_.cancel(number); };
  return handlers;
}

/// Answers all who have asked what the ranks wait for.
void Master::answer_hang() {
  if (hang_askers_.empty()) return;
  const OrderedJson json{{"hang", hang_json(supervisor_.end().hang)}};
  const std::string text = json_line(json);
  for (const ControlHandlers::HangAnswered& done : std::exchange(hang_askers_, {}))
    done(text);
}

/// The same as the user's SIGTERM. A second request without `now` changes nothing.
void Master::stop(bool now, const std::string& by) {
  note_start_steps();
  const bool stops = supervisor_.end().stop_signal != 0;
  // The report needs a stop by the user even if `now` comes first.
  if (!stops) step(job::UserSignal{SIGTERM, false, by});
  if (now) step(job::UserSignal{SIGTERM, true, by});
}

}  // namespace ddp::launcher
