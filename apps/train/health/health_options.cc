#include "apps/train/health/health_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "apps/train/options/option_text.h"

namespace ddp::train {

namespace {

constexpr int kWrongUsage = 2;
constexpr std::size_t kMostMemory = 16u << 20;  // MB, that is 16 TB

/// Parses "RANK:gemm", "RANK:memory" or "RANK:sum".
std::optional<InjectedFault> parse_fault(std::string_view text) {
  InjectedFault inject;
  const char* end = text.data() + text.size();
  const auto rank = std::from_chars(text.data(), end, inject.rank);
  if (rank.ec != std::errc() || rank.ptr == end || *rank.ptr != ':' || inject.rank < 0) return std::nullopt;
  const std::string_view word(rank.ptr + 1, end);
  if (word == "gemm") {
    inject.fault = HealthFault::kGemm;
  } else if (word == "memory") {
    inject.fault = HealthFault::kMemory;
  } else if (word == "sum") {
    inject.fault = HealthFault::kSum;
  } else {
    return std::nullopt;
  }
  return inject;
}

void add_time(CLI::App& app, const char* name, std::chrono::milliseconds& value, const char* text) {
  app.add_option_function<std::string>(
         name,
         [name, &value](const std::string& word) {
           const auto duration = parse_duration(word);
           if (!duration) throw CLI::ValidationError(name, no_duration(word));
           value = *duration;
         },
         text)
      ->type_name("TIME");
}

/// Adds an option whose value is one of `words`. Errors read: unknown --OPTION "x" (WORDS).
template <class T>
void add_choice(CLI::App& app, const char* name, T& value, std::vector<std::pair<std::string, T>> words,
                const char* text, const char* type) {
  app.add_option_function<std::string>(
         name,
         [name, &value, words](const std::string& word) {
           std::string list;
           for (const auto& [known, meant] : words) {
             if (word == known) {
               value = meant;
               return;
             }
             list += (list.empty() ? "" : ", ") + known;
           }
           throw CLI::ValidationError("unknown " + std::string(name) + " \"" + word + "\" (" + list + ")");
         },
         text)
      ->type_name(type);
}

void add_options(CLI::App& app, HealthOptions& options) {
  add_time(app, "time", options.time, "duration of the matrix products (default 10s)");
  app.add_option("--memory,--health-memory", options.memory_mb,
                 "MiB of memory to test (default 256; on a GPU 98 % of the free memory)")
      ->check([](const std::string& text) { return range_error(text, 1, kMostMemory, true); })
      ->type_name("MB");
  add_choice<HealthDeviceKind>(
      app, "--device", options.device,
      {{"auto", HealthDeviceKind::kAuto}, {"cpu", HealthDeviceKind::kCpu}, {"gpu", HealthDeviceKind::kGpu}},
      "auto: the GPU of LOCAL_RANK if it exists, else the CPU; cpu; gpu (default auto)", "NAME");
  app.add_option("--threads", options.threads, "threads of a rank on a CPU (default: its part of the cores)")
      ->check([](const std::string& text) { return range_error(text, 1, 1'024, true); })
      ->type_name("N");
  add_choice<CommKind>(app, "--comm", options.comm,
                       {{"auto", CommKind::kAuto}, {"tcp", CommKind::kTcp}, {"shm", CommKind::kShm}},
                       "auto: shared memory inside a node, TCP between nodes; tcp; shm (default auto)",
                       "BACKEND");
  add_time(app, "--comm-timeout", options.comm_timeout,
           "give up when a peer moves no byte for this long (default 60s)");
  app.add_option("--json", options.json, "file for the result, written by rank 0")->type_name("FILE");
  app.add_option_function<std::string>(
         "--inject-fault,--health-plant",
         [&options](const std::string& text) {
           options.inject = parse_fault(text);
           if (!options.inject)
             throw CLI::ValidationError("--inject-fault",
                                        "\"" + text + "\" is not RANK:gemm, RANK:memory or RANK:sum");
         },
         "fault injection: this rank's test finds a wrong value")
      ->type_name("RANK:TEST");
}

const char* device_text(HealthDeviceKind kind) {
  switch (kind) {
    case HealthDeviceKind::kAuto:
      return "auto";
    case HealthDeviceKind::kCpu:
      return "cpu";
    case HealthDeviceKind::kGpu:
      return "gpu";
  }
  return "?";
}

}  // namespace

ParsedHealthOptions parse_health_options(int argc, const char* const* argv) {
  HealthOptions options;
  CLI::App app(
      "Tests the device of each rank, each pair of ranks and all ranks together: matrix products and memory\n"
      "with known results, messages and all-reduces. Exit code 1 if a test fails.",
      "train health");
  add_options(app, options);
  try {
    auto words = reversed_arguments(argc, argv);
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    return {std::nullopt, app.exit(error) == 0 ? 0 : kWrongUsage};
  }
  return {options, 0};
}

EqualOptions equal_options(const HealthOptions& options) {
  return {{"the time", std::to_string(options.time.count()) + " ms"},
          {"--device", device_text(options.device)},
          {"--memory", std::to_string(options.memory_mb)},
          {"--json", given_text(!options.json.empty())}};
}

}  // namespace ddp::train
