#include "apps/ddplaunch/options/job_options.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "apps/ddplaunch/options/option_readers.h"
#include "launcher/lines/label.h"
#include "remote/hosts/host_range.h"

namespace ddp {

namespace {

using launcher::Bars;
using launcher::ConsolePolicy;
using launcher::OutputOptions;

/// A smaller limit would fill the directory with parts.
constexpr std::uint64_t kSmallestPart = 4096;
constexpr unsigned long long kMostParts = 1'000'000;

constexpr std::array<std::pair<std::string_view, Bars>, 4> kBars{
    {{"rank0", Bars::kRank0}, {"node", Bars::kNode}, {"all", Bars::kAll}, {"off", Bars::kOff}}};
constexpr std::array<std::pair<std::string_view, ConsolePolicy>, 3> kPolicies{
    {{"auto", ConsolePolicy::kAuto}, {"block", ConsolePolicy::kBlock}, {"drop", ConsolePolicy::kDrop}}};

template <class Value, std::size_t N>
void read_word(const std::string& text, std::string_view option,
               const std::array<std::pair<std::string_view, Value>, N>& words, Value& value,
               Diagnostics& diagnostics) {
  if (text.empty()) return;
  std::string known;
  for (std::size_t i = 0; i < N; ++i) {
    if (text == words[i].first) {
      value = words[i].second;
      return;
    }
    known += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i].first);
  }
  diagnostics.fail(std::string(option) + ' ' + text + ": choose " + known);
}

void read_label(const OptionValues& values, OutputOptions& output, Diagnostics& diagnostics) {
  output.label = values.label;
  output.label_on = !output.label.empty() && output.label != "none";
  if (!output.label_on) return;
  if (const auto checked = launcher::check_label_template(output.label); !checked)
    diagnostics.fail(checked.error().text);
}

void read_filters(const OptionValues& values, OutputOptions& output, Diagnostics& diagnostics) {
  if (!values.show_ranks.empty()) {
    if (auto ranges = read_rank_ranges(values.show_ranks)) {
      output.show_ranks = std::move(*ranges);
    } else {
      diagnostics.fail("--show-ranks " + values.show_ranks + ": give ranks like 0,8-15, or all");
    }
  }
  if (values.local_ranks_filter.empty()) return;
  const auto ranges = read_rank_ranges(values.local_ranks_filter);
  if (!ranges || (!ranges->empty() && ranges->back().second > kMaxLocalRank)) {
    return diagnostics.fail("--local-ranks-filter " + values.local_ranks_filter +
                            ": give local ranks like 0,1 or 0-3");
  }
  for (const auto& [first, last] : *ranges) {
    for (std::uint32_t rank = first; rank <= last; ++rank)
      output.local_ranks_filter.push_back(static_cast<int>(rank));
  }
}

/// `workers` is the number per node; 0: unknown.
void read_streams(const std::string& text, std::string_view option, int workers,
                  launcher::StreamChoice& choice, Diagnostics& diagnostics) {
  if (text.empty()) return;
  if (auto read = read_stream_choice(text)) {
    choice = std::move(*read);
    if (workers == 0 || choice.by_local.empty() || choice.by_local.rbegin()->first < workers) return;
    diagnostics.fail(std::string(option) + ' ' + text + ": there is no local rank " +
                     std::to_string(choice.by_local.rbegin()->first) + " with --nproc-per-node " +
                     std::to_string(workers));
  } else {
    diagnostics.fail(
        std::string(option) + ' ' + text +
        ": give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or local ranks with them: 0:3,1:2");
  }
}

void read_files(const OptionValues& values, const ProcessContext& context, int workers, OutputOptions& output,
                Diagnostics& diagnostics) {
  read_streams(values.tee, "--tee", workers, output.tee, diagnostics);
  read_streams(values.redirects, "--redirects", workers, output.redirects, diagnostics);
  if (!values.log_dir.empty()) output.log_dir = absolute_path(values.log_dir, context.cwd);
  output.jsonl = values.jsonl;
  if (values.log_max_size.empty()) return;
  const std::string_view text = values.log_max_size;
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto size = read_size(text.substr(0, colon));
  const auto parts = colon == text.size() ? 0 : remote::whole_number(text.substr(colon + 1), kMostParts);
  const bool no_limit = size && *size == 0;  // no limit means no parts
  if (!size || !parts || (colon < text.size() && (*parts == 0 || no_limit))) {
    diagnostics.fail("--log-max-size " + values.log_max_size +
                     ": give a size like 500K, 64M or 2G, or with the number of parts to keep: 64M:4");
  } else if (*size != 0 && *size < kSmallestPart) {
    diagnostics.fail("--log-max-size " + values.log_max_size +
                     " is too small; at least 4K, or 0 for no limit");
  } else {
    output.log_max_size = *size;
    output.log_max_parts = static_cast<std::uint32_t>(*parts);
  }
}

}  // namespace

void read_output_options(const OptionValues& values, const ProcessContext& context, launcher::JobSpec& spec,
                         Diagnostics& diagnostics) {
  spec.quiet = values.quiet;
  if (values.quiet && values.verbose) diagnostics.fail("--quiet and --verbose contradict each other");
  OutputOptions& output = spec.output;
  read_label(values, output, diagnostics);
  read_filters(values, output, diagnostics);
  read_word(values.bars, "--bars", kBars, output.bars, diagnostics);
  output.fold = values.fold;
  read_word(values.console, "--console", kPolicies, output.console, diagnostics);
  const bool fixed = spec.nproc.kind == launcher::ProcsPerNode::Kind::kNumber;
  read_files(values, context, fixed ? spec.nproc.number : 0, output, diagnostics);
}

}  // namespace ddp
