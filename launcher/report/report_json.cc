#include "launcher/report/report_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "base/exit_status.h"
#include "base/text.h"
#include "launcher/report/host_texts.h"
#include "launcher/report/root_cause.h"

namespace ddp::launcher {
namespace {

constexpr int kFormat = 1;
/// Number of failures reported with their last lines. All of them would make the report of a large job too
/// long to read.
constexpr std::size_t kTails = 16;
/// Bytes of the failures' long texts. Beyond them a text is cut to kShort.
constexpr std::size_t kLongTexts = 4u << 20;
constexpr std::size_t kShort = 1'000;

const char* kind_name(Failure::Kind kind) {
  switch (kind) {
    case Failure::Kind::kExited: return "exited";
    case Failure::Kind::kSignaled: return "signaled";
    case Failure::Kind::kMisbehaved: return "misbehaved";
    case Failure::Kind::kExec: return "not_executed";
    case Failure::Kind::kNode: return "node";
    case Failure::Kind::kHung: return "hung";
  }
  return "";
}

std::string text_of(const OrderedJson& report) {
  return escape_unsafe_in_json(json_line(report, 2));
}

OrderedJson meter_json(const UsageMeter& meter, OrderedJson all = {}) {
  OrderedJson json{{"mean", std::round(meter.mean() * 1000) / 1000},
                   {"peak", std::round(meter.peak * 1000) / 1000}};
  if (!all.is_null()) json["of"] = std::move(all);
  return json;
}

OrderedJson usage_json(const UsageSummary& usage) {
  const JobUsage& last = usage.last;
  if (last.nodes == 0) return {};
  OrderedJson json{{"cpu", meter_json(usage.cpu, last.cpus)},
                   {"memory", meter_json(usage.memory_used, last.memory)},
                   {"network_in", meter_json(usage.network_in)},
                   {"network_out", meter_json(usage.network_out)},
                   {"infiniband_in", meter_json(usage.infiniband_in)},
                   {"infiniband_out", meter_json(usage.infiniband_out)},
                   {"disk_read", meter_json(usage.disk_read)},
                   {"disk_written", meter_json(usage.disk_written)},
                   {"gpus", last.gpus}};
  json["gpu_busy"] = last.gpus > 0 ? meter_json(usage.gpu_busy, 100) : OrderedJson();
  json["gpu_memory"] = last.gpus > 0 ? meter_json(usage.gpu_memory_used, last.gpu_memory) : OrderedJson();
  return json;
}

const char* name_of(HangVerdict::Kind kind) {
  switch (kind) {
    case HangVerdict::Kind::kActive: return "active";
    case HangVerdict::Kind::kStalled: return "stalled";
    case HangVerdict::Kind::kHung: return "hung";
    case HangVerdict::Kind::kFailed: return "failed";
  }
  return "";
}

class ReportWriter {
 public:
  ReportWriter(const JobEnd& end, const ExitReport& exit, const JobFacts& facts, bool brief)
      : end_(end),
        exit_(exit),
        facts_(facts),
        cause_(cause_of(end)),
        brief_(brief),
        tails_(brief ? kTails : 0),
        room_(brief ? 0 : kLongTexts) {}

  OrderedJson report() {
    OrderedJson report;
    report["format"] = kFormat;
    report["ddplaunch"] = facts_.version;
    report["outcome"] = outcome();
    report["exit_code"] = exit_.exit_code;
    report["why"] = text_or_null(exit_.why);
    report["started"] = utc_text(wall(facts_.began));
    report["ended"] = utc_text(facts_.ended_at);
    report["duration_s"] = in_seconds(facts_.ended - facts_.began);
    report["goodput"] = std::round(facts_.goodput * 1000) / 1000;
    report["step"] = or_null(facts_.step);
    report["step_s"] = or_null(facts_.step_seconds);
    report["loss"] = or_null(facts_.loss);
    report["usage"] = usage_json(facts_.usage);
    report["job"] = {{"id", facts_.job_id},
                     {"directory", text_or_null(facts_.job_dir)},
                     {"nodes", facts_.nodes},
                     {"world_size", facts_.world_size == 0 ? OrderedJson() : OrderedJson(facts_.world_size)},
                     {"attempts", facts_.attempts}};
    report["stop_signal"] =
        end_.stop_signal == 0 ? OrderedJson() : OrderedJson(signal_name(end_.stop_signal));
    report["stopped_by"] = text_or_null(end_.stopped_by);
    report["error"] = cause_ == nullptr && end_.master ? error_json(*end_.master) : OrderedJson();
    report["root_cause"] = cause_ == nullptr ? OrderedJson() : failure_json(*cause_, true);
    report["other_failures"] = OrderedJson::array();
    for (const Failure& failure : end_.failures) {
      if (&failure != cause_ && !brief_) report["other_failures"].push_back(failure_json(failure, false));
    }
    report["exited_early"] = OrderedJson::array();
    for (const EarlyExit& exit : brief_ ? std::vector<EarlyExit>() : early_exits()) {
      report["exited_early"].push_back({{"rank", exit.rank},
                                        {"host", exit.host},
                                        {"since_start_s", in_seconds(exit.at())},
                                        {"margin_s", in_seconds(exit.happened.margin())}});
    }
    report["earlier_attempts"] = OrderedJson::array();
    for (const Failure& failure : brief_ ? std::vector<Failure>() : end_.earlier)
      report["earlier_attempts"].push_back(failure_json(failure, true));
    // One that a user asked for while the job worked says nothing of its end.
    const bool held = end_.hang && end_.hang->kind != HangVerdict::Kind::kActive;
    report["hang"] = held ? hang_json(end_.hang) : OrderedJson();
    report["warnings"] = facts_.warnings;
    return report;
  }

 private:
  std::string fitted(const std::string& text) {
    // Short texts always fit. The root cause is written first, so its long texts find the room.
    const std::size_t size = text.size() <= kShort || text.size() <= room_ ? text.size() : kShort;
    room_ -= std::min(room_, size);
    return text.substr(0, size);
  }

  OrderedJson error_json(const Error& error) {
    return {{"kind", error_kind(error)},
            {"errno", error.sys == 0 ? OrderedJson() : OrderedJson(error.sys)},
            {"text", fitted(error.text)}};
  }

  OrderedJson exception_json(const WorkerException& exception) {
    OrderedJson time;
    if (exception.unix_time)
      time = utc_text(std::chrono::system_clock::time_point(std::chrono::seconds(*exception.unix_time)));
    return {{"type", text_or_null(fitted(exception.type))},
            {"message", fitted(exception.message)},
            {"frame", text_or_null(fitted(exception.frame))},
            {"traceback", text_or_null(fitted(exception.trace))},
            {"time", time}};
  }

  const char* outcome() const {
    if (end_.stop_signal != 0) return "stopped";
    if (exit_.exit_code == 0) return "success";
    const bool started = cause_ == nullptr ? !end_.master : !is_start_failure(*cause_) || cause_->attempt > 0;
    return started ? "failed" : "not_started";
  }

  /// Returns the workers that exited 0 before what ended the job; none if all workers ended this way.
  std::vector<EarlyExit> early_exits() const {
    if (cause_ != nullptr) return exits_before(end_, *cause_);
    return end_.stop_signal == 0 ? std::vector<EarlyExit>() : end_.early;
  }

  std::chrono::system_clock::time_point wall(std::chrono::nanoseconds when) const {
    // Wall times are counted back from the end, so that a step of the wall clock during the job cannot make
    // them disagree with the durations.
    return facts_.ended_at - duration_cast<std::chrono::system_clock::duration>(facts_.ended - when);
  }

  OrderedJson failure_json(const Failure& failure, bool cause) {
    const bool worker = failure.of_worker();
    const bool ran = worker && failure.kind != Failure::Kind::kExec;
    const Evidence& evidence = failure.evidence;
    const bool tail = !failure.last_stderr.empty() && tails_ < kTails && (cause || !failure.stopped_by_us);
    if (tail) ++tails_;
    OrderedJson json;
    json["what"] = kind_name(failure.kind);
    json["text"] = fitted(failure_line(failure, cause));
    json["host"] = text_or_null(failure.host);
    json["rank"] = worker ? OrderedJson(failure.rank) : OrderedJson();
    json["local_rank"] = worker ? OrderedJson(failure.local_rank) : OrderedJson();
    json["pid"] = ran ? OrderedJson(failure.pid) : OrderedJson();
    json["exit_code"] = failure.kind == Failure::Kind::kExited ? OrderedJson(failure.status) : OrderedJson();
    json["signal"] =
        failure.kind == Failure::Kind::kSignaled ? OrderedJson(signal_name(failure.signal)) : OrderedJson();
    json["core_dumped"] = failure.core_dumped;
    json["stopped_by_ddplaunch"] = failure.stopped_by_us && !is_crash(failure) &&
                                   (!cause || (failure.signal != 0 && failure.signal != SIGABRT));
    json["attempt"] = failure.attempt;
    json["start_attempt"] = ran ? OrderedJson(failure.start_attempt) : OrderedJson();
    json["time"] = failure.happened.latest.count() == 0
                       ? OrderedJson()
                       : OrderedJson(utc_text(wall(failure.happened.middle())));
    json["since_start_s"] = in_seconds(failure.at());
    json["margin_s"] = in_seconds(failure.happened.margin());
    json["ran_s"] = failure.ran ? OrderedJson(in_seconds(*failure.ran)) : OrderedJson();
    json["error"] = ran ? OrderedJson() : error_json(failure.error);
    json["out_of_memory"] = text_or_null(fitted(evidence.oom));
    const std::string xids = fitted(evidence.xid);
    json["xid"] = split_lines(xids);
    const auto exception = exception_of(failure);
    json["exception"] = exception ? exception_json(*exception) : OrderedJson();
    json["waited_for"] = text_or_null(failure.waited_for);
    json["stderr_tail"] = tail ? failure.last_stderr : std::vector<std::string>();
    json["stderr_file"] = text_or_null(failure.stderr_path);
    json["hint"] = cause ? text_or_null(hint_for(failure)) : OrderedJson();
    return json;
  }

  const JobEnd& end_;
  const ExitReport& exit_;
  const JobFacts& facts_;
  const Failure* cause_;
  const bool brief_;
  std::size_t tails_;
  std::size_t room_;
};

}  // namespace

OrderedJson hang_json(const std::optional<HangVerdict>& verdict) {
  if (!verdict) return {};
  constexpr std::array kConfidences = {"low", "medium", "high"};
  OrderedJson witnesses = OrderedJson::array();
  for (const HangVerdict::Witness& witness : verdict->witnesses)
    witnesses.push_back({{"source", witness.source}, {"ranks", witness.ranks}, {"text", witness.text}});
  return {{"state", name_of(verdict->kind)},
          {"attempt", verdict->attempt},
          {"text", verdict->text},
          {"confidence", kConfidences[static_cast<std::size_t>(verdict->confidence)]},
          {"ranks", verdict->ranks},
          {"quiet_s", in_seconds(verdict->quiet)},
          {"witnesses", std::move(witnesses)},
          {"files", text_or_null(verdict->files)}};
}

std::string report_json(const JobEnd& end, const ExitReport& exit, const JobFacts& facts) {
  return text_of(ReportWriter(end, exit, facts, false).report());
}

std::string brief_report_json(const JobEnd& end, const ExitReport& exit, const JobFacts& facts) {
  return text_of(ReportWriter(end, exit, facts, true).report());
}

std::string utc_text(std::chrono::system_clock::time_point time) {
  using namespace std::chrono;
  const auto day = floor<days>(time);
  const year_month_day date(day);
  const hh_mm_ss clock(floor<milliseconds>(time - day));
  return format_text("%04d-%02u-%02uT%02d:%02d:%02d.%03dZ", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     static_cast<int>(clock.hours().count()), static_cast<int>(clock.minutes().count()),
                     static_cast<int>(clock.seconds().count()), static_cast<int>(clock.subseconds().count()));
}

}  // namespace ddp::launcher
