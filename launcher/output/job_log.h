#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "launcher/job/job_spec.h"
#include "launcher/output/job_writer.h"
#include "rendezvous/protocol/message.h"

namespace spdlog {
class logger;
}

namespace ddp::launcher {

/// ddplaunch.log in the job's directory: timestamped messages and actions of ddplaunch, for a later analysis.
/// It has all steps, even without --verbose, and nothing of the environment. Loop thread.
class JobLog {
 public:
  /// Starts with one line about the job. `files` must outlive the log.
  JobLog(JobWriter& files, const JobSpec& spec);
  ~JobLog();
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;

  /// Logs a message that the user also sees.
  void said(std::string_view text) const;
  /// Logs a completed step.
  void step(std::string_view text) const;
  /// Logs the start or end of a worker on `host`; ignores other messages.
  void from_node(const std::string& host, const rendezvous::Message& message) const;
  /// Logs the report, line by line.
  void ended(std::string_view report) const;

 private:
  std::unique_ptr<spdlog::logger> log_;
};

}  // namespace ddp::launcher
