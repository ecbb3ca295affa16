#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/result.h"
#include "base/unique_fd.h"

namespace ddp::launcher {

/// Where others than the control socket serve the metrics of a run (docs/users/metrics.md).
struct MetricsPlace {
  std::string address;  ///< numeric; empty: only the control socket has the metrics
  std::uint16_t port = 0;
  std::chrono::milliseconds linger{0};  ///< how long the last metrics are served after the end
};

/// Where a run is registered, so that other processes of this user find it (docs/users/operate.md).
struct JobRegistration {
  std::vector<std::string> directories;     ///< the first that can be written gets the entry
  std::string name;                         ///< of the entry; no other run has it
  std::size_t keep = 100;                   ///< --keep-jobs; 0: all
  std::vector<std::string> arguments = {};  ///< the options about the hosts
  std::string cwd = {};
  MetricsPlace metrics = {};
  bool claims_id = false;  ///< no run may begin with the job's id while another has it
};

/// A registered run: the file NAME.job beside the directories of the jobs. All functions block on the disk.
struct JobEntry {
  std::string name;
  std::string job;
  std::string directory;  ///< of the job's files
  std::string host;       ///< where its ddplaunch runs
  std::int64_t pid = 0;
  std::string socket;                       ///< its control socket; empty: none
  std::string command;                      ///< for people
  std::string started;                      ///< RFC 3339, UTC
  std::string file = {};                    ///< the entry's own path; set by read_jobs
  std::vector<std::string> arguments = {};  ///< the options about its hosts; empty also if they are too long
  std::string cwd = {};                     ///< of its ddplaunch
  std::string cleaned = {};  ///< when `ddplaunch clean` ended what it left, RFC 3339; empty: not yet
  std::string label = {};    ///< --label; empty: none
  std::vector<std::string> hosts = {};  ///< the names of its hosts; empty with `arguments`
};

/// Writes the entry into the first directory that can be written, which is created if needed.
Result<> register_job(const JobRegistration& where, const JobEntry& entry);

/// Refuses the id of a job that runs. Until the returned lock is closed, no other run can claim an id, so the
/// caller registers its run meanwhile. The lock is empty where the disk has none, or where another start
/// holds it for seconds. kUsage: such a job runs, on this host, or on another one whose locks this disk
/// shows. `advice`: what to do then; empty: to choose another id, or to end that job. `own_directory`: of
/// this run, if it has one.
Result<UniqueFd> claim_job_id(const JobRegistration& where, const std::string& job,
                              const std::string& advice = {}, const std::string& own_directory = {});

/// Returns the registered runs, the oldest first. Skips files that are no entries.
std::vector<JobEntry> read_jobs(const std::vector<std::string>& directories);

/// Returns the only run that this host runs now, or if `id` is not empty the only one of those whose job or
/// name begins with it. An exact match wins over a mere beginning. If none of them runs, the newest one
/// counts, and with `id` they must be runs of one job. `whole_names`: a beginning is enough only for ids that
/// ddplaunch has made, so that "run1" never means "run10". kUsage: there is none, or several run, or jobs of
/// several ids match.
Result<JobEntry> find_job(const std::vector<JobEntry>& jobs, std::string_view id, bool whole_names = false);

struct RunState {
  enum class Kind : std::uint8_t {
    kRunning,
    kEnded,      ///< its report exists, or its journal has its end
    kCrashed,    ///< its ddplaunch ended without either
    kElsewhere,  ///< it has neither, and another host knows more
    kDeleted,    ///< the directory of its files is gone
  };
  Kind kind = Kind::kCrashed;
  std::optional<int> exit_code = {};  ///< kEnded
  std::string why = {};               ///< kEnded: the reason in either; empty after success
};
/// Returns the report of an ended run; null: there is none that can be read.
nlohmann::ordered_json read_report(const std::string& directory);
/// Returns the last sample of a run's journal (docs/users/journal.md); null: none is near its end.
nlohmann::ordered_json last_sample(const std::string& directory);

/// Returns the text under `key`; empty: there is none. Entries, reports and journals are read with it, since
/// another program may have written them.
std::string text_of(const nlohmann::ordered_json& json, const char* key);
/// Returns kEnded if the report or the journal in the directory of a run has its end.
std::optional<RunState> recorded_end(const std::string& directory);
RunState state_of(const JobEntry& job);
const char* state_name(RunState::Kind kind);

/// Waits until the job has its report, or its ddplaunch on this host has ended. kSystem: the disk has no
/// locks.
Result<> wait_for_end(const JobEntry& job);

/// Waits while the job's ddplaunch is about to end: it answers nobody any more, and has no report yet. At
/// most `limit`. For a request without an answer: state_of() then tells whether the job has ended.
void let_end(const JobEntry& job, std::chrono::milliseconds limit);

/// Sets JobEntry::cleaned in the entry's file to `time`.
Result<> mark_cleaned(const JobEntry& job, const std::string& time);

/// Deletes the entry of an ended run, and the directory of its files if that is beside the entry. Returns
/// false if it may run.
bool remove_job(const JobEntry& job);

/// Deletes the files of ended jobs of this user in the default directories, until at most `keep` jobs are
/// left there, none is older than 30 days and all together have at most 16 GiB. The newest 10 of them stay.
/// Looks once an hour, and when there are over an eighth more jobs than `keep`. Entries of jobs with a
/// directory elsewhere are deleted without that directory. Never touches a running job, nor a directory that
/// is no job's. Gives up after 5 s; the next job continues.
void prune_jobs(const JobRegistration& kept);

}  // namespace ddp::launcher
