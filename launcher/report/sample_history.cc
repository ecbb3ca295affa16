#include "launcher/report/sample_history.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace ddp::launcher {
namespace {

double number(std::uint64_t value) {
  return static_cast<double>(value);
}

void add_gpus(JobUsage& usage, const std::vector<rendezvous::GpuSample>& gpus) {
  for (const rendezvous::GpuSample& gpu : gpus) {
    usage.gpu_busy = (usage.gpu_busy * usage.gpus + gpu.busy) / (usage.gpus + 1);
    ++usage.gpus;
    usage.gpu_memory += number(gpu.memory);
    usage.gpu_memory_used += number(gpu.memory_used);
    usage.gpu_power += gpu.power_mw / 1000.0;
  }
}

/// Whole numbers, but "0.4" for less than 10.
std::string few_digits(double value) {
  return format_text(value < 9.95 ? "%.1f" : "%.0f", value);
}

/// "12 of 80 GiB"
std::string part_text(double used, double all) {
  constexpr double kGiB = 1u << 30;
  return few_digits(used / kGiB) + " of " + format_text("%.0f GiB", all / kGiB);
}

}  // namespace

void UsageMeter::add(double value) {
  sum += value;
  peak = std::max(peak, value);
  ++count;
}

std::string usage_text(const JobUsage& usage) {
  if (usage.nodes == 0) return {};
  std::string text;
  if (usage.gpus > 0)
    text = format_text("GPU %.0f %% busy, ", usage.gpu_busy) +
           part_text(usage.gpu_memory_used / usage.gpus, usage.gpu_memory / usage.gpus) + "; ";
  return text + "CPU " + few_digits(usage.cpu) + " of " + format_text("%.0f cores", usage.cpus) +
         ", memory " + part_text(usage.memory_used, usage.memory);
}

std::string usage_text(const UsageSummary& summary) {
  JobUsage shown = summary.last;
  shown.gpu_busy = summary.gpu_busy.mean();
  shown.gpu_memory_used = summary.gpu_memory_used.peak;
  shown.cpu = summary.cpu.mean();
  shown.memory_used = summary.memory_used.peak;
  return usage_text(shown);
}

void SampleHistory::add_sample(std::size_t node, std::uint32_t cpus, rendezvous::NodeSample sample,
                               Time now) {
  nodes_[node] = {cpus, std::move(sample), now};
}

const rendezvous::NodeSample* SampleHistory::sample_of(std::size_t node, Time now) const {
  const auto found = nodes_.find(node);
  return found == nodes_.end() || now - found->second.at > kFresh ? nullptr : &found->second.sample;
}

JobUsage SampleHistory::usage(Time now) const {
  JobUsage usage;
  for (const auto& [index, node] : nodes_) {
    if (now - node.at > kFresh) continue;
    const rendezvous::NodeSample& sample = node.sample;
    ++usage.nodes;
    usage.cpus += node.cpus;
    usage.cpu += number(sample.job_cpu_milli) / 1000;
    usage.memory += number(sample.memory);
    usage.memory_used += number(sample.job_memory);
    usage.network_in += number(sample.network_in);
    usage.network_out += number(sample.network_out);
    usage.infiniband_in += number(sample.infiniband_in);
    usage.infiniband_out += number(sample.infiniband_out);
    usage.disk_read += number(sample.disk_read);
    usage.disk_written += number(sample.disk_written);
    add_gpus(usage, sample.gpus);
  }
  return usage;
}

bool SampleHistory::record(const JobProgress::Figures& figures, std::uint32_t attempt, Time now) {
  if (metered_ && now - *metered_ < kPointEvery) return false;
  metered_ = now;
  const JobUsage current = usage(now);
  if (current.nodes > 0) {
    summary_.last = current;
    summary_.cpu.add(current.cpu);
    summary_.memory_used.add(current.memory_used);
    summary_.network_in.add(current.network_in);
    summary_.network_out.add(current.network_out);
    summary_.infiniband_in.add(current.infiniband_in);
    summary_.infiniband_out.add(current.infiniband_out);
    summary_.disk_read.add(current.disk_read);
    summary_.disk_written.add(current.disk_written);
    if (current.gpus > 0) {
      summary_.gpu_busy.add(current.gpu_busy);
      summary_.gpu_memory_used.add(current.gpu_memory_used);
    }
  }
  if (added_ && now - *added_ < apart_) return true;
  added_ = now;
  point_ = {attempt, figures.step, figures.step_seconds, figures.loss, figures.goodput(), current};
  if (++kept_ < kMostPoints) return true;
  kept_ /= 2;
  *added_ -= apart_;  // the last one is among those that the reader drops
  apart_ *= 2;
  return true;
}

void SampleHistory::record_end(const JobProgress::Figures& figures, std::uint32_t attempt, Time now) {
  metered_.reset();
  added_.reset();
  record(figures, attempt, now);
}

std::vector<std::string> gpu_troubles(const rendezvous::NodeSample& sample) {
  std::vector<std::string> troubles;
  const auto name = [](const rendezvous::GpuSample& gpu) { return "GPU " + std::to_string(gpu.index); };
  // The errors come first, since a narrow table cuts the end.
  for (const rendezvous::GpuSample& gpu : sample.gpus)
    if (gpu.xid != 0) troubles.push_back(name(gpu) + " reports Xid " + std::to_string(gpu.xid));
  for (const rendezvous::GpuSample& gpu : sample.gpus) {
    // A lowered power limit is how most GPUs run at full load.
    const auto reasons = throttle_reasons(gpu.throttle);
    for (const std::string& reason : reasons)
      if (reason != "power") troubles.push_back(name(gpu) + " is slowed by " + reason);
  }
  return troubles;
}

std::string node_troubles(const rendezvous::NodeSample& sample) {
  constexpr std::uint64_t kStall = 100;          // a tenth of the time
  constexpr std::uint64_t kSteal = 50;           // of 1000 of each CPU
  constexpr std::uint64_t kOtherPrograms = 250;  // the same
  std::vector<std::string> troubles = gpu_troubles(sample);
  if (sample.memory_stall >= kStall) troubles.emplace_back("processes wait for memory");
  if (sample.steal_milli >= kSteal * sample.cpus && sample.cpus > 0)
    troubles.emplace_back("the host of this virtual machine takes CPU time away");
  const std::uint64_t known = sample.job_cpu_milli + sample.steal_milli;
  if (sample.cpu_milli >= known + kOtherPrograms * sample.cpus && sample.cpus > 0)
    troubles.emplace_back("other programs use the CPUs");
  if (sample.network_errors > 0) troubles.emplace_back("the network reports errors");
  return join(troubles, ", ");
}

std::vector<std::string> throttle_reasons(std::uint64_t reasons) {
  // nvmlClocksThrottleReasons of nvml.h. The others are idle GPUs, and clocks that somebody set.
  constexpr std::uint64_t kPower = 0x4 | 0x80, kHeat = 0x20 | 0x40, kHardware = 0x8;
  std::vector<std::string> words;
  if ((reasons & kPower) != 0) words.emplace_back("power");
  if ((reasons & kHeat) != 0) words.emplace_back("heat");
  if ((reasons & kHardware) != 0 && words.empty()) words.emplace_back("hardware");
  return words;
}

}  // namespace ddp::launcher
