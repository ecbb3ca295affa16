#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/report/job_progress.h"
#include "rendezvous/protocol/message.h"

namespace ddp::launcher {

/// What a job uses at one moment, over all its nodes. Rates are bytes per second.
struct JobUsage {
  int nodes = 0;                           ///< of which something is known; 0: the rest means nothing
  double cpus = 0;                         ///< that the job may use
  double cpu = 0;                          ///< CPUs that its processes keep busy
  double memory = 0;                       ///< bytes of the nodes
  double memory_used = 0;                  ///< bytes of the job's processes
  double network_in = 0, network_out = 0;  ///< of the nodes, as the next four
  double infiniband_in = 0, infiniband_out = 0;
  double disk_read = 0, disk_written = 0;
  int gpus = 0;
  double gpu_busy = 0;    ///< percent, the mean of all GPUs
  double gpu_memory = 0;  ///< bytes of all GPUs
  double gpu_memory_used = 0;
  double gpu_power = 0;  ///< watts of all GPUs
};

/// Mean and peak of a value over the life of a job.
struct UsageMeter {
  double sum = 0;
  double peak = 0;
  std::uint64_t count = 0;

  void add(double value);
  double mean() const { return count == 0 ? 0 : sum / static_cast<double>(count); }
};

/// What a job used from its start to now.
struct UsageSummary {
  JobUsage last;  ///< the latest, for sizes; `nodes` is 0 if nothing was ever known
  UsageMeter cpu, memory_used, gpu_busy, gpu_memory_used, network_in, network_out, infiniband_in,
      infiniband_out, disk_read, disk_written;
};

/// Returns "GPU 43 % busy, 12 of 80 GiB; CPU 3 of 96 cores, memory 5 of 512 GiB": means of what is busy,
/// peaks of memory, as seff prints them. GPU memory is that of one GPU. Empty: nothing is known.
std::string usage_text(const UsageSummary& summary);
/// The same of one moment.
std::string usage_text(const JobUsage& usage);

/// What a job did and used at one moment.
struct HistoryPoint {
  std::uint32_t attempt = 0;
  std::optional<std::uint64_t> step;
  std::optional<double> step_seconds, loss;
  double goodput = 0;
  JobUsage usage;
};

/// Knows what a job uses and has used, and decides when its journal gets a point (sans-IO): status, metrics,
/// page and report read it here, or there. Times are of one monotonic clock.
class SampleHistory {
 public:
  using Time = std::chrono::nanoseconds;
  /// A reader who drops every second point at this number has them equally far apart, so the points of a
  /// job of any length are few.
  static constexpr std::size_t kMostPoints = 2'000;
  static constexpr std::chrono::seconds kPointEvery{1};
  /// A node that has sent nothing for three periods has no known usage.
  static constexpr std::chrono::seconds kFresh{15};

  /// `cpus`: that the job may use on the node.
  void add_sample(std::size_t node, std::uint32_t cpus, rendezvous::NodeSample sample, Time now);
  /// Call it once a second or more often. Returns whether a second has passed since the last call that
  /// returned true.
  bool record(const JobProgress::Figures& figures, std::uint32_t attempt, Time now);
  /// The job has ended: counts what came since the last call of record() and makes a last point, so that the
  /// end of the journal and the report say the same.
  void record_end(const JobProgress::Figures& figures, std::uint32_t attempt, Time now);
  /// Returns the point that the last of these calls made for the journal; unset: none. Points are a second
  /// apart; from kMostPoints on two, and so on: with each kMostPoints / 2 further ones the distance doubles.
  std::optional<HistoryPoint> take_point() { return std::exchange(point_, std::nullopt); }

  /// Null: it is not known what the node uses.
  const rendezvous::NodeSample* sample_of(std::size_t node, Time now) const;
  JobUsage usage(Time now) const;
  const UsageSummary& summary() const { return summary_; }

 private:
  struct NodeUsage {
    std::uint32_t cpus = 0;
    rendezvous::NodeSample sample;
    Time at{0};
  };
  std::map<std::size_t, NodeUsage> nodes_;
  std::optional<HistoryPoint> point_;
  UsageSummary summary_;
  std::size_t kept_ = 0;         ///< points that such a reader has
  Time apart_ = kPointEvery;     ///< of two points
  std::optional<Time> added_;    ///< when the last point was made
  std::optional<Time> metered_;  ///< when the summary was added to
};

/// Returns what a sample shows of GPUs that are not well: "GPU 3 reports Xid 48", "GPU 3 is slowed by heat".
std::vector<std::string> gpu_troubles(const rendezvous::NodeSample& sample);
/// Returns these, and what else slows the ranks of a node down, such as other programs, which are no fault of
/// the node. Without numbers that change all the time. Empty: nothing.
std::string node_troubles(const rendezvous::NodeSample& sample);
/// Returns why a GPU runs slower than it could: "power", "heat", "hardware". `reasons`: GpuSample::throttle.
std::vector<std::string> throttle_reasons(std::uint64_t reasons);

}  // namespace ddp::launcher
