// Figures of all ranks → diagnostics; and the tests of one device, with injected faults.
#include "apps/train/health/checks/health_diagnosis.h"

#include <cmath>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "apps/train/health/checks/health_kernels.h"
#include "apps/train/health/equal_steps.h"
#include "apps/train/health/health.h"
#include "tests/support/catch.h"
#include "tests/support/host_launch.h"

namespace ddp::train {
namespace {

using Lines = std::vector<std::string>;

HealthReport healthy(int ranks) {
  HealthReport report;
  report.backend = "tcp";
  for (int i = 0; i < ranks; ++i) {
    HealthFigures& one = report.ranks.emplace_back();
    one.host = "gpu0" + std::to_string(i + 1);
    one.device = "CPU";
    one.products = 100;
    one.gflops = 10;
    one.memory = 1u << 20;
  }
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b)
      report.pairs.push_back({a, b, false, 30, 5});
  }
  return report;
}

Lines diagnostic_lines(const HealthReport& report) {
  Lines lines;
  for (const HealthDiagnostic& diagnostic : diagnose_health(report))
    lines.push_back((diagnostic.error ? "error " : "warning ") + std::to_string(diagnostic.rank) + ' ' +
                    diagnostic.item + ": " + diagnostic.text);
  return lines;
}

TEST_CASE("Healthy ranks have no findings") {
  CHECK(diagnostic_lines(healthy(1)).empty());
  CHECK(diagnostic_lines(healthy(4)).empty());
}

TEST_CASE("A rank with wrong values is named with all of them in one line") {
  HealthReport report = healthy(3);
  report.ranks[1].wrong_products = 2;
  report.ranks[1].other_products = 3;
  report.ranks[1].wrong_words = 1;
  report.ranks[1].first_wrong = 4096;
  report.ranks[1].wrong_bits = 16;
  report.ranks[2].wrong_sums = 7;
  const auto diagnostics = diagnose_health(report);
  CHECK(failure_lines(report, diagnostics) ==
        Lines{"rank 1 on gpu02, CPU: 100 equal matrix products: 2 wrong, 3 different from the first; "
              "1 wrong word in 1 MiB of memory, the first at offset 0x1000, wrong bits 0x0000000000000010",
              "rank 2 on gpu03, CPU: 7 wrong elements in the sum over all ranks"});
  CHECK_FALSE(has_failed(diagnostics, 0));
  CHECK(has_failed(diagnostics, 1));
  CHECK(health_json(report, diagnostics).find("\"passed\":false") != std::string::npos);
}

TEST_CASE("A pair that fails is reported for both ranks, a slow one as a warning") {
  HealthReport report = healthy(3);
  report.pairs[0].failed = true;
  CHECK(diagnostic_lines(report) == Lines{"error 0 pair: could not exchange messages with rank 1 on gpu02",
                                          "error 1 pair: could not exchange messages with rank 0 on gpu01"});
  report = healthy(3);
  report.pairs[2].bandwidth = 1;
  CHECK(
      diagnostic_lines(report) ==
      Lines{"warning 1 pair: 1.00 GB/s with rank 2 on gpu03, more than 20 % under the median of the others"});
}

TEST_CASE("A rank with most of the bad pairs is reported, and not the witnesses of its faults") {
  HealthReport report = healthy(3);
  for (HealthFigures& figures : report.ranks)
    figures.wrong_sums = 7;
  const std::string nobody =
      "error -1 sum: sums are wrong on 3 of 3 ranks, and no single rank or pair explains it; run train bench "
      "allreduce on halves of the hosts to find the fault, and compare their versions of driver and NCCL";
  CHECK(diagnostic_lines(report) == Lines{nobody});
  const auto diagnostics = diagnose_health(report);
  CHECK(failure_lines(report, diagnostics) == Lines{nobody.substr(14)});
  CHECK(has_failed(diagnostics, HealthDiagnostic::kJob));
  CHECK_FALSE(has_failed(diagnostics, 0));
  CHECK_THAT(health_json(report, diagnostics),
             Catch::Matchers::ContainsSubstring(
                 "\"findings\":[{\"level\":\"error\",\"item\":\"sum\",\"text\":\"sums are"));
  report.pairs[1].wrong = report.pairs[2].wrong = 4;
  CHECK(diagnostic_lines(report) == Lines{"error 2 pair: 4 wrong bytes in the exchange with rank 0 on gpu01",
                                          "error 2 pair: 4 wrong bytes in the exchange with rank 1 on gpu02",
                                          "error 2 sum: 7 wrong elements in the sum over all ranks"});
  report = healthy(4);
  report.pairs[2].bandwidth = report.pairs[4].bandwidth = report.pairs[5].bandwidth = 1;
  for (const std::string& line : diagnostic_lines(report))
    CHECK(line.starts_with("warning 3 pair: 1.00 GB/s with rank "));
}

TEST_CASE("Bad pairs everywhere are one error of the job, bad pairs here and there are not") {
  HealthReport report = healthy(3);
  for (PairResult& pair : report.pairs)
    pair.wrong = 4;
  for (HealthFigures& figures : report.ranks)
    figures.wrong_sums = 7;
  CHECK(
      diagnostic_lines(report) ==
      Lines{"error -1 pair: wrong bytes or no connection in 3 of 3 pairs of ranks, between gpu01 and gpu02, "
            "between gpu01 and gpu03, between gpu02 and gpu03, and no single rank explains them; check the "
            "network of these hosts, and compare their versions of driver and NCCL"});
  report = healthy(5);
  report.pairs[0].failed = report.pairs[1].failed = true;  // 0-1, 0-2
  CHECK(diagnostic_lines(report).size() == 4);
}

TEST_CASE("Groups name the rank that is in all bad ones, else they are an error or warning of the job") {
  HealthReport report = healthy(4);
  for (HealthFigures& figures : report.ranks)
    figures.wrong_sums = 7;
  report.groups = groups_of({0, 0, 1, 1}, {0, 1, 0, 1});
  for (GroupResult& group : report.groups)
    group.bandwidth = 10;
  report.groups[1].wrong = report.groups[3].wrong = 2;
  report.groups[1].witnesses = {2, 3};
  report.groups[3].witnesses = {1, 3};
  CHECK(diagnostic_lines(report) == Lines{"error 3 sum: sums in node 1 and rail 1 are wrong",
                                          "error 3 sum: 7 wrong elements in the sum over all ranks"});
  const std::string nobody = ", and no single rank explains it; test parts of these ranks by themselves";
  report.groups[3].wrong = 0;
  CHECK(diagnostic_lines(report) ==
        Lines{"error -1 sum: sums in node 1 (rank 2, rank 3) are wrong" + nobody});
  for (HealthFigures& figures : report.ranks)
    figures.wrong_sums = 0;
  report.groups[1].wrong = 0;
  report.groups[0].bandwidth = 5;
  const std::string slow = " are more than 20 % under the median of the others";
  CHECK(diagnostic_lines(report) ==
        Lines{"warning -1 slow: all-reduces in node 0 (rank 0, rank 1)" + slow + nobody});
  report.groups[2].bandwidth = 5;
  CHECK(diagnostic_lines(report) == Lines{"warning 0 slow: all-reduces in node 0 and rail 0" + slow});
}

TEST_CASE("A slow rank of two, three or four is named by the median of the others") {
  for (const int world : {2, 3, 4}) {
    HealthReport report = healthy(world);
    report.ranks[0].gflops = 5;
    CHECK(diagnostic_lines(report) ==
          Lines{"warning 0 slow: 5.0 GFLOP/s for each thread, 50 % under the median of the others"});
    report = healthy(world);
    for (PairResult& pair : report.pairs)
      if (pair.first == 0) pair.bandwidth = 1;
    for (const std::string& line : diagnostic_lines(report))
      CHECK(line.starts_with("warning 0 pair: 1.00 GB/s with rank "));
    CHECK(std::ssize(diagnostic_lines(report)) == (world == 2 ? 0 : world - 1));
    report = healthy(world);
    report.ranks[1].step_lost = 0.1;
    CHECK(diagnostic_lines(report).size() == 1);
  }
  HealthReport report = healthy(3);
  report.ranks[0].gflops = report.ranks[1].gflops = 5;
  CHECK(diagnostic_lines(report).size() == 2);
}

TEST_CASE("A rank that is more than 20 % below the median of its kind is reported as slow") {
  HealthReport report = healthy(3);
  report.ranks[2].gflops = 7.9;
  CHECK(diagnostic_lines(report) ==
        Lines{"warning 2 slow: 7.9 GFLOP/s for each thread, 21 % under the median of the others"});
  report.ranks[2].gflops = 8.1;
  CHECK(diagnostic_lines(report).empty());
  // More threads do not make a rank slower.
  report.ranks[0].gflops = 40;
  report.ranks[0].threads = 4;
  CHECK(diagnostic_lines(report).empty());
  // A GPU is not compared with a CPU.
  report.ranks[1].gpu = true;
  report.ranks[1].device = "GPU 0 (H100)";
  report.ranks[1].gflops = 9000;
  CHECK(diagnostic_lines(report).empty());
}

TEST_CASE("Errors that NVML counts are reported") {
  HealthReport report = healthy(1);
  HealthFigures& one = report.ranks[0];
  one.gpu = true;
  one.ecc_uncorrected = 1;
  one.xids = 1;
  one.last_xid = 79;
  one.throttle_reasons = 0x24;
  one.clock = 900;
  one.most_clock = 1980;
  one.temperature = 91;
  CHECK(diagnostic_lines(report) ==
        Lines{"error 0 ecc: 1 uncorrectable ECC error",
              "error 0 xid: the driver reported 1 Xid error, the last is Xid 79",
              "warning 0 throttle: clocks were throttled by heat, down to 900 of 1980 MHz at 91 degrees"});
}

TEST_CASE("Health figures survive their encoding as numbers") {
  HealthFigures figures = healthy(2).ranks[1];
  figures.gpu = true;
  figures.gflops = 12.5;
  figures.last_xid = 79;
  figures.step_lost = 0.25;
  figures.remap_waits = 1;
  figures.trouble = std::string(500, 'x');
  figures.products_by = "cuBLASLt 13.0.2 (/lib/libcublasLt.so.13)";
  const auto words = pack_figures(figures);
  REQUIRE(words.size() == kHealthFields);
  const HealthFigures back = unpack_figures(words.data());
  CHECK(back.host == "gpu02");
  CHECK(back.device == "CPU");
  CHECK(back.gpu);
  CHECK(back.gflops == 12.5);
  CHECK(back.products == 100);
  CHECK(back.last_xid == 79);
  CHECK(back.step_lost == 0.25);
  CHECK(back.remap_waits == 1);
  CHECK(back.trouble == std::string(188, 'x') + "...");
  CHECK(back.products_by == figures.products_by);
}

TEST_CASE("Equal steps: the minority is named, by majority of ranks and of repeats") {
  // Two batches, each twice; after the kind.
  using Words = std::vector<std::uint64_t>;
  const auto verdicts = [](std::vector<Words> ranks) {
    Words words;
    for (const Words& rank : ranks)
      words.insert(words.end(), rank.begin(), rank.end());
    std::string text;
    for (const StepVerdict& one : compare_steps(words, 5, 4, 2))
      text += std::to_string(one.other) + "/" + std::to_string(one.unclear) + " ";
    return text;
  };
  const Words good{1, 7, 8, 7, 8};
  CHECK(verdicts({good, good, good}) == "0/0 0/0 0/0 ");
  CHECK(verdicts({good, {1, 7, 9, 7, 8}, good}) == "0/0 1/0 0/0 ");
  CHECK(verdicts({good, {1, 6, 9, 6, 9}, good}) == "0/0 4/0 0/0 ");
  CHECK(verdicts({good, {1, 0, 8, 7, 8}, good}) == "0/0 1/0 0/0 ");  // a nan
  CHECK(verdicts({good, {1, 7, 8, 7, 9}}) == "0/0 1/0 ");            // of two ranks, the one that wavers
  CHECK(verdicts({good, {1, 6, 8, 6, 8}}) == "0/2 0/2 ");            // or none of them
  CHECK(verdicts({{1, 7, 8, 7, 9}}) == "0/2 ");
  CHECK(verdicts({{1, 0, 0, 0, 0}, {1, 0, 0, 0, 0}}) == "4/0 4/0 ");  // all ranks agree on nan
  CHECK(verdicts({{1, 0, 8, 7, 8}}) == "1/0 ");
  // Other devices round in other ways; a rank without steps has no vote.
  CHECK(verdicts({good, {2, 5, 5, 5, 5}, {0, 0, 0, 0, 0}}) == "0/0 0/0 0/0 ");
}

TEST_CASE("Ranks are compared by each speed, and named when they pause") {
  HealthReport report = healthy(3);
  for (HealthFigures& one : report.ranks) {
    one.steps = 100;
    one.step_p50 = 0.010;
    one.step_p99 = 0.012;
    one.step_lost = 0.01;
    one.memory_gbps = 10;
  }
  CHECK(diagnostic_lines(report).empty());
  report.ranks[1].step_p50 = 0.020;
  report.ranks[2].memory_gbps = 5;
  CHECK(diagnostic_lines(report) ==
        Lines{"warning 1 slow: 50.0 training steps/s, 50 % under the median of the others",
              "warning 2 slow: 5.0 GB/s to its memory, 50 % under the median of the others"});
  CHECK(speed_table(report) ==
        "#\n"
        "#  rank    GFLOP/s    step ms     p99 ms   mem GB/s\n"
        "       0      10.00      10.00      12.00      10.00\n"
        "       1      10.00      20.00      12.00      10.00\n"
        "       2      10.00      10.00      12.00       5.00\n"
        "# median      10.00      10.00      12.00      10.00\n");
  report = healthy(2);
  report.ranks[0].step_lost = 0.01;
  report.ranks[1].step_lost = 0.1;
  report.ranks[1].step_p50 = 0.01;
  report.ranks[1].step_p99 = 0.06;
  CHECK(diagnostic_lines(report) == Lines{"warning 1 pause: lost 10.0 % of its time in pauses: 1 % of its "
                                          "training steps take 60.0 ms or more, "
                                          "half of them 10.0 ms; the median of the others is 1.0 %"});
}

TEST_CASE("only steps of one width are compared") {
  const auto kind = [](int width) {
    const auto steps = EqualSteps::open(DeviceKind::kCpu, 0, width, 1);
    REQUIRE(steps.has_value());
    return (*steps)->kind();
  };
  CHECK(kind(8) == kind(8));
  CHECK(kind(8) != kind(16));
}

TEST_CASE("ranks divide the memory that they test") {
  const std::uint64_t sizes[] = {7, 100, 9, 50, 7, 80, 0, 0};
  CHECK(memory_share(sizes, 0) == 40);
  CHECK(memory_share(sizes, 1) == 50);
  CHECK(memory_share(sizes, 3) == 0);
  const auto tested = [](std::size_t memory, std::size_t share) {
    HealthTask task;
    task.memory = memory;
    task.share = share;
    HealthFigures figures;
    REQUIRE(open_health_cpu()->remember(task, figures).has_value());
    return figures.memory;
  };
  CHECK(tested(0, 1 << 20) == 1 << 20);
  CHECK(tested(2 << 20, 1 << 20) == 2 << 20);
}

TEST_CASE("The counters of a GPU's links and rows are reported, and rounds add up to the worst") {
  HealthReport report = healthy(1);
  HealthFigures& all = report.ranks[0];
  HealthFigures round = all;
  all.gflops = 0;
  all.products = 0;
  round.gpu = true;
  round.pcie_replays = round.nvlink_errors = round.remapped_rows = 1;
  round.watts = 300;
  round.bf16_gflops = 800;
  round.clock = 1500;
  all.add(round);
  round.watts = 700;
  round.bf16_gflops = 900;
  round.clock = 1400;
  all.add(round);
  CHECK(all.products == 200);
  CHECK((all.gflops == 10 && all.bf16_gflops == 800 && all.watts == 700 && all.clock == 1400));
  CHECK(diagnostic_lines(report) == Lines{"error 0 rows: 2 rows of the GPU's memory had to be replaced",
                                          "warning 0 link: 2 replays on PCIe",
                                          "warning 0 link: 2 errors on NVLink (replays, recoveries, CRC)"});
}

TEST_CASE("Exact products of whole numbers repeat, and their factors are stored without a loss") {
  const HealthGemm gemm(StoredNumber::kFp8, 64, 16);
  std::vector<float> product(16 * 64);
  for (std::size_t row = 0; row < 16; ++row) {
    for (std::size_t column = 0; column < 64; ++column) {
      for (std::size_t d = 0; d < 64; ++d)
        product[row * 64 + column] += gemm.a()[row * 64 + d] * gemm.b()[column % 16 * 64 + d];
    }
  }
  CHECK(gemm.wrong(product) == 0);
  product[100] += 1;
  CHECK(gemm.wrong(product) == 1);
  const float numbers[] = {0, 1, -2, 1.5f, 8};
  const auto bytes = [](std::initializer_list<int> all) {
    std::vector<std::byte> list;
    for (const int one : all)
      list.push_back(static_cast<std::byte>(one));
    return list;
  };
  CHECK(stored(StoredNumber::kFp8, numbers) == bytes({0x00, 0x38, 0xc0, 0x3c, 0x50}));
  CHECK(stored(StoredNumber::kBf16, std::span(numbers).first(3)) ==
        bytes({0x00, 0x00, 0x80, 0x3f, 0x00, 0xc0}));
}

TEST_CASE("Products are compared with the exact one and with the first") {
  const HealthGemm gemm(24);
  std::vector<float> product(24 * 24);
  for (std::size_t row = 0; row < 24; ++row) {
    for (std::size_t column = 0; column < 24; ++column) {
      for (std::size_t d = 0; d < 24; ++d)
        product[row * 24 + column] += gemm.a()[row * 24 + d] * gemm.b()[d * 24 + column];
    }
  }
  CHECK(gemm.wrong(product) == 0);
  HealthProducts products(gemm);
  products.add_product(product);
  products.add_product(product);
  CHECK((products.wrong == 0 && products.other == 0));
  auto last_bit = product;
  last_bit[5] = std::nextafter(last_bit[5], 100.0f);
  products.add_product(last_bit);
  CHECK((products.wrong == 0 && products.other == 1));
  product[7] += 0.01f;
  products.add_product(product);
  CHECK((products.wrong == 1 && products.other == 2));
  CHECK(products.products == 4);
  HealthProducts wrong_from_the_first(gemm);
  wrong_from_the_first.add_product(product);
  wrong_from_the_first.add_product(product);
  CHECK((wrong_from_the_first.wrong == 2 && wrong_from_the_first.other == 0));
}

TEST_CASE("The bounds of a product are the last floats within its error") {
  const HealthGemm gemm(24);
  std::vector<float> lowest = gemm.lowest(), highest = gemm.highest();
  CHECK(gemm.wrong(lowest) == 0);
  CHECK(gemm.wrong(highest) == 0);
  for (float& low : lowest)
    low = std::nextafter(low, -1e9f);
  for (float& high : highest)
    high = std::nextafter(high, 1e9f);
  CHECK(gemm.wrong(lowest) == lowest.size());
  CHECK(gemm.wrong(highest) == highest.size());
}

TEST_CASE("The GPU's blocks compare a product's copies with the first one and its bounds, in any order") {
  const int count = 2 * CompareProduct::kElements + 300;  // the last block is not full
  for (const int copies : {1, 4, 167}) {                  // of 16,684, 4,171 and 100 elements
    INFO(copies << " copies");
    const int size = kernels::device::divide_up(count, copies);
    std::vector<float> first, lowest, highest, product;
    for (int i = 0; i < size; ++i) {
      first.push_back(static_cast<float>(i));
      lowest.push_back(first.back() - 0.5f);
      highest.push_back(first.back() + 0.5f);
    }
    for (int i = 0; i < count; ++i)
      product.push_back(first[static_cast<std::size_t>(i % size)]);
    product[3] += 0.25f;                                           // other
    product[CompareProduct::kElements - 1] += 1.0f;                // other and wrong
    product[CompareProduct::kElements] -= 1.0f;                    // the same, in the next block
    product[2 * CompareProduct::kElements + 299] = std::nanf("");  // the same
    for (const bool backward : {false, true}) {
      std::vector<ProductFaults> found(3);
      kernels::device::run_on_host<CompareProduct>(
          {product.data(), first.data(), lowest.data(), highest.data(), count, size, found.data()},
          {backward, 5});
      CHECK((found[0].compared == CompareProduct::kElements && found[0].other == 2 && found[0].wrong == 1));
      CHECK((found[1].compared == CompareProduct::kElements && found[1].other == 1 && found[1].wrong == 1));
      CHECK((found[2].compared == 300 && found[2].other == 1 && found[2].wrong == 1));
    }
  }
}

TEST_CASE("Memory patterns find a bit that flips") {
  std::vector<std::uint64_t> memory(1000);
  CHECK(test_patterns(memory).words == 0);
  const PatternFaults faults = test_patterns(memory, true);
  CHECK(faults.words == 1);
  CHECK(faults.first == 500 * 8);
  CHECK(faults.bits == 16);
  CHECK(faults.compared == 4 * 1000);
}

/// Returns the reports of the GPU test's blocks about a piece, run on the host in some order.
std::vector<PatternFaults> read_pattern_faults(const HealthPiece& piece,
                                               const kernels::device::HostOrder& order) {
  std::vector<PatternFaults> faults(static_cast<std::size_t>(blocks_of(piece)));
  kernels::device::run_on_host<ReadPattern>({piece, faults.data()}, order);
  return faults;
}

TEST_CASE("The GPU's blocks write each word of a piece once, and no other word") {
  // The last block is not full.
  const std::size_t count = 2 * kHealthBlockWords + 300;
  std::vector<std::uint64_t> memory(count + 2, 77);
  for (int i = 0; i < kHealthPatterns; ++i) {
    const HealthPiece piece{memory.data() + 1, count, 4096, static_cast<HealthPattern>(i)};
    kernels::device::run_on_host<WritePattern>(piece, {i % 2 == 1, static_cast<unsigned>(i)});
    bool right = memory.front() == 77 && memory.back() == 77;
    for (std::size_t word = 0; word < count; ++word)
      right = right && piece.words[word] == pattern_word(piece.pattern, 4096 + word);
    CHECK(right);
  }
}

TEST_CASE("The GPU's blocks report what they read independently, in any order") {
  const std::size_t count = 2 * kHealthBlockWords + 300;
  std::vector<std::uint64_t> memory(count);
  const HealthPiece piece{memory.data(), count, 1000, HealthPattern::kComplement};
  kernels::device::run_on_host<WritePattern>(piece);
  for (const auto& one : read_pattern_faults(piece, {}))
    CHECK((one.words == 0 && one.bits == 0));
  memory[5] ^= 1;
  memory[kHealthBlockWords - 1] ^= 2;
  memory[kHealthBlockWords] ^= 4;
  memory[count - 1] ^= 8;
  const auto faults = read_pattern_faults(piece, {});
  REQUIRE(faults.size() == 3);
  CHECK(faults[0] == PatternFaults{kHealthBlockWords, 2, (1000 + 5) * 8, 3});
  CHECK(faults[1] == PatternFaults{kHealthBlockWords, 1, (1000 + kHealthBlockWords) * 8, 4});
  CHECK(faults[2] == PatternFaults{300, 1, (1000 + count - 1) * 8, 8});
  for (const bool reverse : {false, true})
    CHECK(read_pattern_faults(piece, {reverse, 3}) == faults);
}

TEST_CASE("A GPU that reports no wrong word is not trusted when the host sees one") {
  const PatternFaults silent{100, 0, PatternFaults::none().first, 0};
  const PatternFaults seen{100, 2, 64, 5};
  CHECK(with_sample(silent, seen) == seen);
  // Faults that only the GPU saw are kept.
  CHECK(with_sample(seen, silent) == seen);
  CHECK(with_sample({100, 3, 32, 8}, seen) == PatternFaults{100, 3, 32, 13});
}

}  // namespace
}  // namespace ddp::train
