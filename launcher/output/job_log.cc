#include "launcher/output/job_log.h"

#include <unistd.h>

#include <variant>

#include "base/build_identity.h"
#include "base/exit_status.h"
#include "remote/hosts/shell_command.h"

namespace ddp::launcher {
namespace {

constexpr OutputKey kLogFile{0, 0, 0, kJobLog};

std::string worker_text(const WorkerCommand& command) {
  std::string text = command.kind == WorkerCommand::Kind::kTrain ? "train" : "";
  for (const std::string& word : command.argv) {
    const auto quoted = remote::shell_quote({word});
    text += (text.empty() ? "" : " ") + (quoted ? *quoted : "(an argument of several lines)");
  }
  return text;
}

std::string end_text(const rendezvous::WorkerExited& exited) {
  if (exited.pid == 0) return "did not start: " + exited.text;
  const ExitStatus status =
      exited.signal != 0 ? ExitStatus::signaled(exited.signal, exited.core) : ExitStatus::exited(exited.code);
  return status.text();
}

}  // namespace

JobLog::JobLog(JobWriter& files, const JobSpec& spec) {
  log::write_to([&files](std::string_view line) { files.append(kLogFile, line); });
  log::set_level(log::Level::kDebug);
  job_.info("ddplaunch ", version(), ", pid ", ::getpid(), ", job ", spec.job_id, ", hosts ",
            spec.hosts.size(), ", worker: ", worker_text(spec.command));
}

JobLog::~JobLog() {
  log::write_to({});
}

void JobLog::said(std::string_view text) const {
  job_.info(text);
}

void JobLog::step(std::string_view text) const {
  job_.debug(text);
}

void JobLog::from_node(const std::string& host, const rendezvous::Message& message) const {
  if (const auto* started = std::get_if<rendezvous::WorkerStarted>(&message)) {
    job_.debug(host, ": attempt ", started->attempt, ": rank ", started->rank, " started, pid ",
               started->pid);
  } else if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message)) {
    job_.info(host, ": attempt ", exited->attempt, ": rank ", exited->rank, ", pid ", exited->pid, ' ',
              end_text(*exited));
  }
}

void JobLog::ended(std::string_view report) const {
  while (!report.empty()) {
    const std::size_t end = report.find('\n');
    job_.info(report.substr(0, end));
    report.remove_prefix(end == std::string_view::npos ? report.size() : end + 1);
  }
}

}  // namespace ddp::launcher
