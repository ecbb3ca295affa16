#include "launcher/output/job_log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <memory>
#include <variant>

#include "base/build_identity.h"
#include "base/exit_status.h"
#include "remote/hosts/shell_command.h"

namespace ddp::launcher {
namespace {

constexpr OutputKey kLogFile{0, 0, 0, kJobLog};

class JobFileSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit JobFileSink(JobWriter& files) : files_(files) { set_pattern_("%Y-%m-%d %H:%M:%S.%e %l [%n] %v"); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    files_.append(kLogFile, {line.data(), line.size()});
  }
  void flush_() override {}

  JobWriter& files_;
};

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

JobLog::JobLog(JobWriter& files, const JobSpec& spec)
    : log_(std::make_unique<spdlog::logger>("job", std::make_shared<JobFileSink>(files))) {
  log_->set_level(spdlog::level::debug);
  log_->info("ddplaunch {}, pid {}, job {}, hosts {}, worker: {}", version(), ::getpid(), spec.job_id,
             spec.hosts.size(), worker_text(spec.command));
}

JobLog::~JobLog() = default;

void JobLog::said(std::string_view text) const {
  log_->info(text);
}

void JobLog::step(std::string_view text) const {
  log_->debug(text);
}

void JobLog::from_node(const std::string& host, const rendezvous::Message& message) const {
  if (const auto* started = std::get_if<rendezvous::WorkerStarted>(&message)) {
    log_->debug("{}: attempt {}: rank {} started, pid {}", host, started->attempt, started->rank,
                started->pid);
  } else if (const auto* exited = std::get_if<rendezvous::WorkerExited>(&message)) {
    log_->info("{}: attempt {}: rank {}, pid {} {}", host, exited->attempt, exited->rank, exited->pid,
               end_text(*exited));
  }
}

void JobLog::ended(std::string_view report) const {
  while (!report.empty()) {
    const std::size_t end = report.find('\n');
    log_->info(report.substr(0, end));
    report.remove_prefix(end == std::string_view::npos ? report.size() : end + 1);
  }
}

}  // namespace ddp::launcher
