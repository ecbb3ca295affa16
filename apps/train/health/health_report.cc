// Output of the verdict: a table and lines for people, a record for programs.
#include <cinttypes>
#include <nlohmann/json.hpp>

#include "apps/train/health/checks/health_diagnosis.h"
#include "apps/train/training/run_output.h"
#include "base/build_identity.h"
#include "base/format_text.h"

namespace ddp::train {

namespace {

using OrderedJson = nlohmann::ordered_json;

std::string whose(const HealthReport& report, int rank) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(rank)];
  return "rank " + std::to_string(rank) + " on " + figures.host + ", " + figures.device;
}

OrderedJson rank_json(const HealthFigures& f, std::size_t rank) {
  OrderedJson json{{"rank", rank},
                   {"host", f.host},
                   {"device", f.device},
                   {"trouble", f.trouble},
                   {"threads", f.threads},
                   {"products", f.products},
                   {"wrong_products", f.wrong_products},
                   {"other_products", f.other_products},
                   {"gflops", rounded(f.gflops, 3)},
                   {"memory_bytes", f.memory},
                   {"wrong_words", f.wrong_words},
                   {"wrong_sums", f.wrong_sums},
                   {"throttled", f.throttled}};
  if (f.gpu) {
    json.update({{"products_by", f.products_by},
                 {"ecc_corrected", f.ecc_corrected},
                 {"ecc_uncorrected", f.ecc_uncorrected},
                 {"throttle_reasons", f.throttle_reasons},
                 {"temperature", f.temperature},
                 {"clock_mhz", f.clock},
                 {"most_clock_mhz", f.most_clock},
                 {"xids", f.xids}});
  }
  return json;
}

OrderedJson pair_json(const HealthPair& pair) {
  return {{"ranks", {pair.result.first, pair.result.second}},
          {"same_node", pair.result.same_node},
          {"failed", pair.failed},
          {"wrong", pair.wrong},
          {"latency_us", rounded(pair.result.latency_us, 3)},
          {"bandwidth_gbps", rounded(pair.result.bandwidth, 4)}};
}

OrderedJson finding_json(const HealthReport& report, const HealthDiagnostic& diagnostic) {
  const HealthFigures& figures = report.ranks[static_cast<std::size_t>(diagnostic.rank)];
  return {{"level", diagnostic.error ? "error" : "warning"},
          {"rank", diagnostic.rank},
          {"host", figures.host},
          {"device", figures.device},
          {"item", diagnostic.item},
          {"text", diagnostic.text}};
}

}  // namespace

std::string health_text(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  std::string text = "# train " + std::string(version()) + " health, " + counted(report.ranks.size(), "rank");
  if (report.nodes > 0) text += " on " + counted(report.nodes, "node");
  text += ", " + report.backend + "\n#\n#  rank  products  GFLOP/s  memory (MiB)  result    host, device\n";
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    const HealthFigures& f = report.ranks[i];
    text += format_text("%7zu %9" PRIu64 " %8.1f %13" PRIu64 "  %-8s  %s, %s", i, f.products, f.gflops,
                        f.memory >> 20, has_failed(diagnostics, static_cast<int>(i)) ? "FAILED" : "ok",
                        f.host.c_str(), f.device.c_str());
    if (f.gpu && f.most_clock > 0) {
      text += format_text(", %" PRIu64 " of %" PRIu64 " MHz, %" PRIu64 " degrees", f.clock, f.most_clock,
                          f.temperature);
    }
    if (!f.products_by.empty()) text += ", products by " + f.products_by;
    text += "\n";
  }
  for (const HealthDiagnostic& diagnostic : diagnostics) {
    if (!diagnostic.error)
      text += "# warning: " + whose(report, diagnostic.rank) + ": " + diagnostic.text + "\n";
  }
  return text;
}

std::vector<std::string> failure_lines(const HealthReport& report,
                                       const std::vector<HealthDiagnostic>& diagnostics) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < static_cast<int>(report.ranks.size()); ++rank) {
    std::string text;
    for (const HealthDiagnostic& diagnostic : diagnostics) {
      if (diagnostic.error && diagnostic.rank == rank) text += (text.empty() ? "" : "; ") + diagnostic.text;
    }
    if (!text.empty()) lines.push_back(whose(report, rank) + ": " + text);
  }
  return lines;
}

std::string health_json(const HealthReport& report, const std::vector<HealthDiagnostic>& diagnostics) {
  OrderedJson ranks = OrderedJson::array(), pairs = OrderedJson::array(), faults = OrderedJson::array();
  for (std::size_t i = 0; i < report.ranks.size(); ++i)
    ranks.push_back(rank_json(report.ranks[i], i));
  for (const HealthPair& pair : report.pairs)
    pairs.push_back(pair_json(pair));
  for (const HealthDiagnostic& diagnostic : diagnostics)
    faults.push_back(finding_json(report, diagnostic));
  OrderedJson record = begin_record("health", 0, static_cast<int>(report.ranks.size()));
  record.update({{"version", version()},
                 {"nodes", report.nodes},
                 {"backend", report.backend},
                 {"ranks", ranks},
                 {"pairs", pairs},
                 {"findings", faults},
                 {"passed", failure_lines(report, diagnostics).empty()}});
  return record_line(record);
}

}  // namespace ddp::train
