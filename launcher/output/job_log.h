#pragma once

#include <string>
#include <string_view>

#include "base/log.h"
#include "launcher/job/job_spec.h"
#include "launcher/output/job_writer.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// ddplaunch.log in the job's directory: what ddplaunch said and did and when, for the morning after. All
/// steps, also without --verbose. Of the environment nothing. Loop thread; one at a time in a process.
class JobLog {
 public:
  /// Begins with one line about the job. `files` outlives the log.
  JobLog(JobWriter& files, const JobSpec& spec);
  ~JobLog();
  JobLog(const JobLog&) = delete;
  JobLog& operator=(const JobLog&) = delete;

  /// Words that the user reads, too.
  void said(std::string_view text) const;
  /// A step done.
  void step(std::string_view text) const;
  /// The start or end of a worker on `host`; other messages leave no line.
  void from_node(const std::string& host, const rendezvous::Message& message) const;
  /// The report, line by line.
  void ended(std::string_view report) const;

 private:
  log::Logger job_{"job"};
};

}  // namespace ddp::launcher
