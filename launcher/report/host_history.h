#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/report/job_end.h"
#include "launcher/report/report_json.h"

namespace ddp::launcher {

/// Wall clock: the history is shared by machines and outlives them.
using HistoryTime = std::chrono::sys_seconds;

/// Failures of this time count for a host's state.
inline constexpr std::chrono::days kHistoryWindow{7};
/// Older ones are not shown either.
inline constexpr std::chrono::days kHistoryKept{90};
/// Within kHistoryWindow: with this number of failures a host is bad, or with one hardware error of a GPU.
inline constexpr int kBadFailures = 2;

/// One failure of a job that belongs to a host.
struct HostFault {
  std::string host;
  HistoryTime time;
  std::string cause;         ///< for people: "Xid 79", "lost"
  bool is_hardware = false;  ///< the hardware of a GPU failed
  std::string job;           ///< the job's id
};

/// Which names in a job mean the machine that runs ddplaunch.
struct OwnMachine {
  std::string host_name;
  std::vector<std::string> names;
};

/// Returns the failures of a job that belong to hosts (docs/users/host_history.md): of each attempt only the
/// root cause, and only the loss of one node or a hardware error of a GPU. Two nodes lost in one attempt are
/// no host's failure, since the network between is the likelier cause. The own machine cannot be lost, and
/// its hardware errors count for its host name.
std::vector<HostFault> host_faults(const JobEnd& end, const JobFacts& facts, const OwnMachine& own);

/// Returns the line for a file of the history: JSON, UTF-8, ends with a newline, at most kHistoryLine bytes.
std::string fault_line(const HostFault& fault);
/// Returns the line by which the failures of a host until `time` are forgotten.
std::string forget_line(const std::string& host, HistoryTime time);
inline constexpr std::size_t kHistoryLine = 2048;

/// What the history says about one host.
struct HostRecord {
  std::string host;
  int failures = 0;    ///< within kHistoryWindow
  int hardware = 0;    ///< of these, hardware errors of a GPU
  int kept = 0;        ///< within kHistoryKept
  std::string causes;  ///< of `failures`, or of `kept` if there are none: "Xid 79", "2 × lost, Xid 79"
  HistoryTime last = {};

  bool is_bad() const { return hardware > 0 || failures >= kBadFailures; }
  /// "3 failures in 7 days (Xid 79)"; requires failures > 0.
  std::string text() const;
};

/// The history of all hosts, from the lines that its writers left. The lines may have any content. Sans-IO.
class HostHistory {
 public:
  /// Ignores failures that are older than kHistoryKept, or later than tomorrow, since clocks differ.
  explicit HostHistory(HistoryTime now) : now_(now) {}

  /// Takes the lines of one writer (a user id). Ignores lines that are no entries. `is_owner`: what this
  /// writer forgets is forgotten for all writers; of others, only their own failures.
  void add(std::string_view lines, std::uint32_t writer, bool is_owner);

  /// Returns the hosts with failures: most failures first, then by name.
  std::vector<HostRecord> records() const;

 private:
  struct Entry {
    HistoryTime time;
    std::uint32_t writer = 0;
    std::string cause;
    bool is_hardware = false;
  };
  struct HostEntries {
    std::vector<Entry> entries;
    std::map<std::uint32_t, HistoryTime> forgotten;  ///< by writer, until when
    HistoryTime forgotten_for_all = HistoryTime::min();
  };
  HistoryTime now_;
  std::map<std::string, HostEntries> hosts_;
};

/// The output of `ddplaunch hosts --history`, for people and for programs. `directory` is that of the
/// history.
std::string history_text(const std::vector<HostRecord>& records, const std::string& directory);
std::string history_json(const std::vector<HostRecord>& records, const std::string& directory);

}  // namespace ddp::launcher
