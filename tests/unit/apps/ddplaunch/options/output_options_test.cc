#include "apps/ddplaunch/options/job_options.h"

#include "apps/ddplaunch/options/option_readers.h"
#include "tests/support/catch.h"
#include "tests/unit/apps/ddplaunch/options/fake_process_context.h"

using ddp::read_rank_ranges;
using ddp::read_stream_choice;
using ddp::launcher::Bars;
using ddp::launcher::ConsolePolicy;
using ddp::launcher::OutputOptions;
using ddp::launcher::RankRanges;
using ddp::test::FakeContext;
using ddp::test::Texts;

namespace {

OutputOptions output_of(Texts args) {
  args.emplace_back("w");
  return FakeContext().spec(args).output;
}

}  // namespace

TEST_CASE("The default output without any option") {
  const OutputOptions output = output_of({});
  CHECK(output.label == "[{host}:{rank}] ");
  CHECK(output.show_ranks.empty());
  CHECK(output.local_ranks_filter.empty());
  CHECK_FALSE(output.redirects.any());
  CHECK_FALSE(output.tee.any());
  CHECK(output.log_dir.empty());
  CHECK(output.log_max_size == 0);
  CHECK_FALSE(output.jsonl);
  CHECK_FALSE(output.fold);
  CHECK(output.bars == Bars::kRank0);
  CHECK(output.console == ConsolePolicy::kAuto);
}

TEST_CASE("All output options") {
  const OutputOptions output =
      output_of({"--show-ranks", "8-15,0", "--local-ranks-filter", "0,2-3", "--bars", "node", "--fold",
                 "--console", "drop", "--log-dir", "logs/x", "--tee", "3", "--redirects", "1:2",
                 "--log-max-size", "64M", "--jsonl"});
  CHECK(output.show_ranks == RankRanges{{0, 0}, {8, 15}});
  CHECK(output.local_ranks_filter == std::vector<int>{0, 2, 3});
  CHECK(output.bars == Bars::kNode);
  CHECK(output.fold);
  CHECK(output.console == ConsolePolicy::kDrop);
  CHECK(output.log_dir == "/data/run/logs/x/20261121-034500-ab12cd");
  CHECK(output.tee.has(5, 1));
  CHECK(output.tee.has(5, 2));
  CHECK(output.redirects.has(1, 2));
  CHECK_FALSE(output.redirects.has(1, 1));
  CHECK_FALSE(output.redirects.has(0, 2));
  CHECK(output.log_max_size == 64u << 20);
  CHECK(output.jsonl);
  CHECK(output_of({"--bars=off"}).bars == Bars::kOff);
  CHECK(output_of({"--bars=all"}).bars == Bars::kAll);
  CHECK(output_of({"--bars=rank0"}).bars == Bars::kRank0);
  CHECK(output_of({"--console=block"}).console == ConsolePolicy::kBlock);
  CHECK(output_of({"--console=auto"}).console == ConsolePolicy::kAuto);
  CHECK(output_of({"-t", "1", "-r", "2"}).redirects.has(0, 2));
  CHECK(output_of({"--log-max-size", "0"}).log_max_size == 0);
  CHECK(output.log_max_parts == 0);
  CHECK(output_of({"--log-max-size", "4K:3"}).log_max_size == 4096);
  CHECK(output_of({"--log-max-size", "4K:3"}).log_max_parts == 3);
}

TEST_CASE("Each wrong value of the output options is one error") {
  CHECK(
      FakeContext().errors({"--show-ranks", "0-", "--local-ranks-filter", "a", "--bars", "some", "--console",
                            "wait", "--tee", "4", "--redirects", "0:3,0:1", "--log-max-size", "12X", "w"}) ==
      Texts{"ddplaunch: --show-ranks 0-: give ranks like 0,8-15, or all",
            "ddplaunch: --local-ranks-filter a: give local ranks like 0,1 or 0-3",
            "ddplaunch: unknown --bars \"some\" (rank0, node, all, off)",
            "ddplaunch: unknown --console \"wait\" (auto, block, drop)",
            "ddplaunch: --tee 4: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or local ranks with "
            "them: 0:3,1:2",
            "ddplaunch: --redirects 0:3,0:1: give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or local "
            "ranks with them: 0:3,1:2",
            "ddplaunch: --log-max-size 12X: give a size like 500K, 64M or 2G, or with the number of parts to "
            "keep: 64M:4"});
  for (const char* bad : {"64M:0", "64M:", ":4", "64M:4:4", "64M:x", "0:3"}) {
    CAPTURE(bad);
    CHECK(FakeContext().errors({"--log-max-size", bad, "w"}).size() == 1);
  }
  CHECK(FakeContext().errors({"--log-max-size", "1K", "w"}) ==
        Texts{"ddplaunch: --log-max-size 1K is too small; at least 4K, or 0 for no limit"});
  CHECK(FakeContext().errors({"--local-ranks-filter", "0-70000", "w"}).size() == 1);
  for (const char* bad : {"03", "0:03", "00"})
    CHECK(FakeContext().errors({"-r", bad, "w"}).size() == 1);
  CHECK(FakeContext().errors({"--nproc-per-node", "4", "--tee", "0:1,5:3", "w"}) ==
        Texts{"ddplaunch: --tee: there is no local rank 5 with --nproc-per-node 4"});
  CHECK(output_of({"--nproc-per-node", "4", "--tee", "3:3"}).tee.has(3, 1));
  CHECK(output_of({"--tee", "5:3"}).tee.has(5, 1));  // each node may have another number of workers
}

TEST_CASE("Ranges of ranks are sorted and merged") {
  CHECK(read_rank_ranges("all") == RankRanges{});
  CHECK(read_rank_ranges("3") == RankRanges{{3, 3}});
  CHECK(read_rank_ranges("5-7,0,1-2,6-9") == RankRanges{{0, 2}, {5, 9}});
  CHECK(read_rank_ranges("0-9,3") == RankRanges{{0, 9}});
  for (const char* bad : {"", ",", "1,", "-1", "1-", "3-2", "1-2-3", "x", "1 ,2", "99999999999"}) {
    CAPTURE(bad);
    CHECK_FALSE(read_rank_ranges(bad));
  }
}

TEST_CASE("Streams of local ranks are read as torchrun writes them") {
  CHECK_FALSE(read_stream_choice("0")->any());
  CHECK(read_stream_choice("2")->has(9, 2));
  CHECK_FALSE(read_stream_choice("2")->has(9, 1));
  CHECK(read_stream_choice("0:3,1:0,2:1")->has(0, 1));
  CHECK_FALSE(read_stream_choice("0:3,1:0,2:1")->has(1, 1));
  CHECK(read_stream_choice("0:3,1:0,2:1")->has(2, 1));
  CHECK_FALSE(read_stream_choice("0:3,1:0,2:1")->has(3, 1));
  for (const char* bad : {"", "4", "-1", "0:4", "0:", ":1", "0:3,", "1,2", "0:3 1:3", "x:1"}) {
    CAPTURE(bad);
    CHECK_FALSE(read_stream_choice(bad));
  }
}
