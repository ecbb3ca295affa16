#include "apps/train/bench/bench.h"

#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"

using namespace ddp::train;
using namespace std::chrono_literals;

namespace {

/// Returns the parsed options of a command line; empty if they are refused. The operation may be missing.
std::optional<BenchOptions> parse(const std::string& line) {
  std::istringstream words(line.starts_with('-') ? "bench allreduce " + line : "bench " + line);
  const std::vector<std::string> texts{std::istream_iterator<std::string>(words), {}};
  std::vector<const char*> arguments;
  for (const std::string& text : texts)
    arguments.push_back(text.c_str());
  return parse_bench_options(static_cast<int>(arguments.size()), arguments.data()).options;
}

std::vector<std::size_t> sizes(const std::string& line) {
  const auto options = parse(line);
  return options ? message_sizes(*options, 4) : std::vector<std::size_t>();
}

}  // namespace

TEST_CASE("the options of nccl-tests are accepted in their spellings") {
  const auto options = parse(
      "-b 64k -e 1M --warmup_iters 3 --iters=7 --min_busbw 2 -c 0 -g 1 -t 1 -d float -o sum -z 1 --agg_iters "
      "1 --comm_timeout 60s");
  REQUIRE(options);
  CHECK(options->min_bytes == 65'536);
  CHECK(options->max_bytes == 1'048'576);
  CHECK(options->warmup == 3);
  CHECK(options->iterations == 7);
  CHECK(options->min_busbw == 2);
  CHECK(options->check == 0);
  CHECK(options->comm_timeout == 60s);
  CHECK(parse("-T 5")->comm_timeout == 5s);
}

TEST_CASE("a missing largest size follows the smallest") {
  CHECK(sizes("-b 64M") == std::vector<std::size_t>{64u << 20});
  CHECK(sizes("-b 16M") == std::vector<std::size_t>{16u << 20, 32u << 20});
  CHECK(sizes("-e 4") == std::vector<std::size_t>{4});
  CHECK(sizes("-b 8 -e 40 -i 16") == std::vector<std::size_t>{8, 24, 40});
  CHECK(sizes("-b 1M -e 3M -f 1") == std::vector<std::size_t>{1u << 20, 2u << 20, 3u << 20});
  CHECK(sizes("-b 8 -e 32 -f 2 -i 8") == std::vector<std::size_t>{8, 16, 32});
  CHECK(parse("pairs")->max_bytes == 4u << 20);
  CHECK(parse("pairs -b 1M")->max_bytes == 1u << 20);
}

TEST_CASE("options that cannot be measured are refused") {
  CHECK_FALSE(parse("-b 2K -e 1K"));
  CHECK_FALSE(parse("-f 1.001"));
  CHECK_FALSE(parse("-g 8"));
  CHECK_FALSE(parse("-d double"));
  CHECK_FALSE(parse("-d bfloat16 --device cpu"));
  CHECK_FALSE(parse("-d bfloat16 --comm tcp"));
  CHECK(parse("-d bfloat16")->type == NumberType::kBfloat16);
  CHECK_FALSE(parse("-o max"));
  CHECK_FALSE(parse("-r 1"));
  CHECK_FALSE(parse("--comm-timeout soon"));
  CHECK_FALSE(parse("--comm gloo"));
  CHECK(parse("pairs --comm nccl"));
  CHECK_FALSE(parse("alltoall --comm tcp"));
  CHECK_FALSE(parse("--out-of-place --device cpu"));
  CHECK_FALSE(parse("--share-gpu"));
  const auto shared = parse("--comm nccl --share-gpu");
  REQUIRE(shared);
  CHECK((shared->comm == CommKind::kNccl && shared->share_gpu));
}
