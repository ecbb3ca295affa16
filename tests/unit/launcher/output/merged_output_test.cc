#include "launcher/output/merged_output.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/text.h"
#include "launcher/lines/output_lines.h"
#include "tests/support/catch.h"
#include "tests/unit/launcher/output/output_fixtures.h"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

/// Merges the output of four ranks, two per host, to two pipes or to one descriptor.
struct MergeBench {
  explicit MergeBench(const OutputOptions& options, int both = -1)
      : console(
            loop.get_executor(), [] {}, ConsolePolicy::kAuto, both < 0 ? out.writer.get() : both,
            both < 0 ? err.writer.get() : both),
        files(start_writer()),
        output(
            *files, console, options,
            [this](std::uint32_t rank) {
              const int node = static_cast<int>(rank) / per_node;
              return LineSource{hosts[node], static_cast<int>(rank), static_cast<int>(rank) % per_node, node,
                                ""};
            },
            [] { return 4u; }) {}
  ~MergeBench() {
    output.stop_timers();
    files->close(seconds(30));
  }

  std::shared_ptr<JobWriter> start_writer() {
    JobSpec spec;
    spec.job_dir = directory.path / "job";
    auto job = JobDir::create(spec);
    REQUIRE(job.has_value());
    return JobWriter::start(
        loop.get_executor(), std::move(*job), [](const std::string&) {}, [] {});
  }
  void add(std::uint32_t rank, std::uint8_t stream, std::string_view bytes, std::uint32_t attempt = 0) {
    output.add(attempt, rank, stream, bytes, steady_now());
  }
  /// Returns what was shown on a stream since the last call.
  std::string shown(int stream) {
    output.pass_on();
    CHECK(console.flush(stream, seconds(10)));
    return test::read_available(stream == 1 ? out.reader : err.reader);
  }

  static constexpr const char* hosts[] = {"a", "b", "c", "d"};
  int per_node = 2;
  asio::io_context loop;
  test::TemporaryDirectory directory;
  test::OutputPipe out;
  test::OutputPipe err;
  Console console;
  std::shared_ptr<JobWriter> files;
  MergedOutput output;
};

OutputOptions labeled(const std::string& label = "{rank}|") {
  OutputOptions options;
  options.label = label;
  return options;
}

TEST_CASE("each line has the label of its rank, and stays on its stream") {
  MergeBench bench(labeled("[{host}:{rank}:{local_rank}:{node_rank}:{stream}] "));
  bench.add(1, 1, "one\ntw");
  bench.add(2, 2, "error\n");
  bench.add(1, 1, "o\n");
  CHECK(bench.shown(1) == "[a:1:1:0:stdout] one\n[a:1:1:0:stdout] two\n");
  CHECK(bench.shown(2) == "[b:2:0:1:stderr] error\n");
  bench.add(3, 1, "no newline");
  CHECK(bench.shown(1).empty());
  bench.add(3, 1, "");
  CHECK(bench.shown(1) == "[b:3:1:1:stdout] no newline\n");
  CHECK(bench.shown(2).empty());
}

TEST_CASE("a label can be left out, and can have the time") {
  OutputOptions plain;
  plain.label.clear();
  MergeBench bench(plain);
  bench.add(1, 1, "x\n");
  CHECK(bench.shown(1) == "x\n");
  MergeBench timed(labeled("{time}|"));
  timed.add(1, 1, "x\n");
  const std::string line = timed.shown(1);
  CHECK(line.size() == kTimeWidth + 3);
  CHECK(line.find_first_not_of("0123456789:.") == kTimeWidth);
}

TEST_CASE("both streams of one output keep their order") {
  const test::OutputPipe both;
  MergeBench bench(labeled(), both.writer.get());
  for (const std::uint8_t stream : {1, 2, 1})
    bench.add(0, stream, std::to_string(stream) + "\n");
  bench.shown(1);
  CHECK(test::read_available(both.reader) == "0|1\n0|2\n0|1\n");
}

TEST_CASE("labels of a terminal have the color of their node, except with NO_COLOR") {
  const test::Pty terminal;
  ::unsetenv("NO_COLOR");
  {
    MergeBench bench(labeled(), terminal.writer.get());
    bench.add(0, 1, "x\n");
    bench.add(2, 2, "y\n");
    bench.output.pass_on();
    CHECK(test::read_until(terminal.reader, "y\r\n") == "\x1b[36m0|\x1b[0mx\r\n\x1b[32m2|\x1b[0my\r\n");
  }
  ::setenv("NO_COLOR", "1", 1);
  MergeBench bench(labeled(), terminal.writer.get());
  bench.add(0, 1, "x\n");
  bench.output.pass_on();
  CHECK(test::read_until(terminal.reader, "x\r\n") == "0|x\r\n");
  ::unsetenv("NO_COLOR");
}

TEST_CASE("only selected ranks are shown, and the files have all ranks") {
  OutputOptions options = labeled();
  options.show_ranks = {{1, 2}};
  options.local_ranks_filter = {1};
  MergeBench bench(options);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    bench.add(rank, 1, "x\n");
    bench.add(rank, 2, "y\n");
  }
  CHECK(bench.shown(1) == "1|x\n");
  CHECK(bench.shown(2) == "1|y\n");
  bench.files->close(seconds(30));
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    CHECK(test::content(bench.files->file(0, rank, 1)) == "x\n");
    CHECK(test::content(bench.files->file(0, rank, 2)) == "y\n");
  }
}

TEST_CASE("bytes in shared memory are shown and written") {
  MergeBench bench(labeled());
  const std::shared_ptr<char[]> memory(new char[2]{'x', '\n'});
  bench.output.add(0, 1, 1, {memory.get(), 2}, steady_now(), memory);
  CHECK(bench.shown(1) == "1|x\n");
  bench.files->close(seconds(30));
  CHECK(test::content(bench.files->file(0, 1, 1)) == "x\n");
}

TEST_CASE("redirected streams are not shown, except those that --tee names") {
  OutputOptions options = labeled();
  options.redirects.by_local = {{0, 1}, {1, 3}};
  options.tee.by_local = {{1, 2}};
  MergeBench bench(options);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    bench.add(rank, 1, "x\n");
    bench.add(rank, 2, "y\n");
  }
  CHECK(bench.shown(1).empty());
  CHECK(bench.shown(2) == "0|y\n1|y\n");
}

TEST_CASE("a selection of no rank is reported once in the job") {
  const auto shown_of = [](const OutputOptions& options) {
    MergeBench bench(options);
    bench.add(0, 1, "x\n");
    bench.add(0, 2, "y\n", 1);
    return std::pair(bench.shown(1), bench.shown(2));
  };
  using Shown = std::pair<std::string, std::string>;
  OutputOptions options = labeled();
  options.show_ranks = {{4, 9}};
  CHECK(
      shown_of(options) ==
      Shown{
          "",
          "ddplaunch: warning: no output is shown: --show-ranks and --local-ranks-filter select none of the "
          "4 ranks; the files have their output\n"});
  options.show_ranks = {{3, 9}};
  CHECK(shown_of(options) == Shown{});
  options = labeled();
  options.redirects.others = 3;
  CHECK(shown_of(options) == Shown{});
}

TEST_CASE("the last frame of a bar becomes a line of the first rank that is shown") {
  const auto shown_of = [](const OutputOptions& options) {
    MergeBench bench(options);
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      for (const std::uint8_t stream : {1, 2}) {
        bench.add(rank, stream, "\r10%\r99%\n");
        bench.add(rank, stream, "");
      }
    }
    return bench.shown(1) + bench.shown(2);
  };
  OutputOptions options = labeled("{stream}{rank}|");
  CHECK(shown_of(options) == "stdout0|99%\nstderr0|99%\n");
  options.show_ranks = {{2, 3}};
  CHECK(shown_of(options) == "stdout2|99%\nstderr2|99%\n");
  options.redirects.by_local = {{0, 1}};  // stdout of rank 2 is not shown
  CHECK(shown_of(options) == "stdout3|99%\nstderr2|99%\n");
  options = labeled();
  options.bars = Bars::kNode;
  CHECK(shown_of(options) == "0|99%\n2|99%\n0|99%\n2|99%\n");
  for (const Bars bars : {Bars::kAll, Bars::kOff}) {
    options.bars = bars;
    CHECK(shown_of(options) == "0|99%\n1|99%\n2|99%\n3|99%\n0|99%\n1|99%\n2|99%\n3|99%\n");
  }
}

TEST_CASE("a new attempt finishes the open lines of the previous one") {
  OutputOptions options = labeled();
  options.bars = Bars::kNode;
  MergeBench bench(options);
  bench.add(0, 1, "half");
  bench.add(1, 2, "first\nerror");
  CHECK(bench.output.last_stderr(0, 1) == std::vector<std::string>{"first", "error"});
  CHECK(bench.output.stderr_file(0, 1) == bench.files->file(0, 1, 2));
  CHECK(bench.output.stderr_file(0, 0).empty());  // it wrote none
  CHECK(bench.output.last_stderr(0, 3).empty());
  bench.per_node = 1;
  bench.add(1, 1, "\r10%\r99%\n", 1);  // another first rank of its node
  bench.add(1, 1, "", 1);
  CHECK(bench.shown(1) == "0|half\n1|99%\n");
  CHECK(bench.shown(2) == "1|first\n1|error\n");
  CHECK(bench.output.last_stderr(0, 1).empty());
  CHECK(bench.output.last_stderr(1, 1).empty());
  CHECK(bench.output.stderr_file(1, 1).empty());
}

TEST_CASE("finish_all shows the open lines of each stream of a lost node") {
  MergeBench bench(labeled());
  for (const std::uint8_t stream : {1, 2}) {
    bench.add(2, stream, "half");
    bench.add(3, stream, "other");
  }
  bench.output.finish_all();
  CHECK(bench.console.flush(2, seconds(10)));  // without another pass_on()
  CHECK(test::read_available(bench.err.reader) == "2|half\n3|other\n");
  CHECK(bench.shown(1) == "2|half\n3|other\n");
}

TEST_CASE("a line of all shown ranks is folded without delay, another one when an event follows") {
  OutputOptions options = labeled("[{host}:{rank}] ");
  options.fold = true;
  options.show_ranks = {{1, 3}};
  MergeBench bench(options);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    CHECK(bench.shown(1).empty());
    bench.add(rank, 1, "x\n");
  }
  CHECK(bench.shown(1) == "[*:1-3] x\n");
  bench.add(1, 1, "own\nhalf");
  CHECK(bench.shown(1).empty());
  bench.output.flush();
  CHECK(bench.shown(1) == "[a:1] own\n");
  bench.output.finish_all();
  CHECK(bench.shown(1) == "[a:1] half\n");
}

TEST_CASE("--jsonl writes the lines of all ranks, shown or not") {
  OutputOptions options;
  options.jsonl = true;
  options.show_ranks = {{0, 0}};
  MergeBench bench(options);
  bench.add(3, 2, "error\nhalf");
  bench.output.finish_all();
  bench.files->close(seconds(30));
  const std::string lines = test::content(bench.directory.path / "job/attempt_0/lines.jsonl");
  const std::string source = R"("host":"b","rank":3,"local_rank":1,"stream":"stderr","line":)";
  CHECK_THAT(lines, Catch::Matchers::ContainsSubstring(source + "\"error\"}\n"));
  CHECK_THAT(lines, Catch::Matchers::ContainsSubstring(source + "\"half\"}\n"));
}

TEST_CASE("a bar of a terminal is a row until its line is shown") {
  OutputOptions plain;
  plain.label.clear();
  for (const bool lost : {false, true}) {
    const test::Pty terminal;
    MergeBench bench(plain, terminal.writer.get());
    const std::uint8_t stream = lost ? 2 : 1;
    bench.add(0, stream, "\r10%");
    REQUIRE(bench.loop.run_one_for(seconds(10)) == 1);
    test::read_until(terminal.reader, "10%\x1b[K");
    bench.add(0, stream, lost ? " " : "\ndone\n");
    lost ? bench.output.finish_all() : bench.output.pass_on();
    bench.console.write(1, "end\n");
    std::string rest = test::read_until(terminal.reader, "end\r\n");
    bench.console.close();
    rest += test::read_available(terminal.reader);
    const std::size_t line = rest.find("10%");
    CHECK(line != std::string::npos);
    CHECK(rest.find("10%", line + 1) == std::string::npos);
  }
}

TEST_CASE("the footer below a bar changes without a line of a worker") {
  const test::Pty terminal;
  MergeBench bench(labeled(), terminal.writer.get());
  bench.add(0, 1, "\r10%");
  REQUIRE(bench.loop.run_one_for(seconds(60)) == 1);
  test::read_until(terminal.reader, "10%");
  bench.output.set_footer("CPU 3.0 of 8 cores");
  CHECK(test::read_until(terminal.reader, "of 8 cores").find("CPU 3.0") != std::string::npos);
}

TEST_CASE("a bar that has ended becomes a line after a pause, on its stream") {
  MergeBench bench(labeled());
  bench.add(0, 1, "\r99%\n");
  bench.add(0, 2, "\r98%\n");
  std::string out;
  while (out.empty()) {
    REQUIRE(bench.loop.run_one_for(seconds(10)) == 1);
    out = bench.shown(1);
  }
  CHECK(out == "0|99%\n");
  CHECK(bench.shown(2) == "0|98%\n");
}

TEST_CASE("after stop_timers() no timer runs") {
  MergeBench bench(labeled());
  bench.add(0, 1, "\r10%");
  bench.output.stop_timers();
  bench.loop.run();
  CHECK(bench.shown(1).empty());
  MergeBench idle(labeled());
  idle.output.stop_timers();
  idle.add(0, 1, "\r10%");
  CHECK(idle.loop.run_one_for(seconds(10)) == 0);
}

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

TEST_CASE("monotonic times are shown as times of day") {
  ::setenv("TZ", "UTC-2", 1);  // two hours east
  ::tzset();
  int asked = 0;
  seconds set{1'795'245'490};  // 2026-11-21T07:18:10Z
  LineClock clock([&] {
    ++asked;
    return nanoseconds(set);
  });
  CHECK(clock.date_and_time(milliseconds(3'250)) == "2026-11-21T07:18:13.250Z");
  CHECK(clock.time_of_day(milliseconds(3'250)) == "09:18:13.250");
  CHECK(clock.time_of_day(milliseconds(3'999)) == "09:18:13.999");
  CHECK(clock.time_of_day(milliseconds(3'000)) == "09:18:13.000");
  CHECK(clock.time_of_day(milliseconds(3'001)).size() == kTimeWidth);
  CHECK(asked == 1);
  CHECK(clock.time_of_day(milliseconds(4'000)) == "09:18:14.000");
  CHECK(clock.time_of_day(milliseconds(2'005)) == "09:18:12.005");
  set += seconds(3600);  // the system clock was set
  CHECK(clock.time_of_day(milliseconds(5'000)) == "10:18:15.000");
  ::unsetenv("TZ");
  ::tzset();
}

TEST_CASE("a wall clock with another fraction of a second than the monotonic one") {
  LineClock clock([] { return seconds(1'795'245'490) + milliseconds(700); });
  CHECK(clock.date_and_time(milliseconds(100)) == "2026-11-21T07:18:10.800Z");
  CHECK(clock.time_of_day(milliseconds(100)).ends_with(".800"));
  CHECK(clock.date_and_time(milliseconds(299)) == "2026-11-21T07:18:10.999Z");
  CHECK(clock.date_and_time(milliseconds(300)) == "2026-11-21T07:18:11.000Z");
  CHECK(clock.date_and_time(milliseconds(0)) == "2026-11-21T07:18:10.700Z");
}

TEST_CASE("the real clock") {
  LineClock clock;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  const std::time_t wall = std::time(nullptr);
  const std::string text(clock.date_and_time(now));
  std::tm parts{};
  REQUIRE(::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) != nullptr);
  CHECK(std::abs(std::difftime(::timegm(&parts), wall)) <= 1);
}

using Shown = std::vector<std::pair<int, std::string>>;

struct Bench {
  asio::io_context loop;
  Shown shown;
  FoldedOutput output;
  explicit Bench(std::string label)
      : output(loop.get_executor(), std::move(label), [this](int stream, std::string_view lines) {
          shown.emplace_back(stream, std::string(lines));
        }) {}
};

LineSource rank_on(std::string_view host, int rank, int local_rank, int node_rank) {
  return {host, rank, local_rank, node_rank, ""};
}

TEST_CASE("merged lines carry the set of ranks, lines of one rank its own label") {
  Bench bench("[{host}:{rank}] ");
  bench.output.begin(4);
  bench.output.add(rank_on("a", 0, 0, 0), 1, "\x1b[36m[a:0]\x1b[0m ", "",
                   "\x1b[36m[a:0]\x1b[0m x\n\x1b[36m[a:0]\x1b[0m own\n");
  bench.output.add(rank_on("a", 1, 1, 0), 1, "[a:1] ", "", "[a:1] x\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "[a:0-1] x\n\x1b[36m[a:0]\x1b[0m own\n"}});
  bench.shown.clear();
  for (int rank = 0; rank < 4; ++rank) {
    const std::string label = "[" + std::string(rank < 2 ? "a" : "b") + ":" + std::to_string(rank) + "] ";
    bench.output.add(rank_on(rank < 2 ? "a" : "b", rank, rank % 2, rank / 2), 2, label, "", label + "all\n");
  }
  CHECK(bench.shown == Shown{{2, "[*:0-3] all\n"}});  // without a delay
}

TEST_CASE("the label of a set has the time of the first line") {
  Bench bench("{time} {node_rank}.{local_rank} {stream}|");
  bench.output.begin(9);
  bench.output.add(rank_on("a", 3, 0, 1), 1, "07:18:13.250 1.0 stdout|", "07:18:13.250",
                   "07:18:13.250 1.0 stdout|x\n");
  bench.output.add(rank_on("a", 4, 1, 1), 1, "07:18:13.300 1.1 stdout|", "07:18:13.300",
                   "07:18:13.300 1.1 stdout|x\n07:18:13.300 1.1 stdout|y\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "07:18:13.250 1.0-1 stdout|x\n07:18:13.300 1.1 stdout|y\n"}});
}

TEST_CASE("both streams of a rank keep the rank's order") {
  Bench bench("");
  bench.output.begin(2);
  bench.output.add(rank_on("a", 0, 0, 0), 2, "", "", "1\n");
  bench.output.add(rank_on("a", 0, 0, 0), 1, "", "", "2\n");
  bench.output.add(rank_on("a", 0, 0, 0), 2, "", "", "3\n");
  bench.output.flush();
  CHECK(bench.shown == Shown{{2, "1\n"}, {1, "2\n"}, {2, "3\n"}});
}

TEST_CASE("the window ends by itself") {
  Bench bench("{rank}|");
  bench.output.begin(2);
  for (int window = 0; window < 2; ++window) {
    bench.shown.clear();
    bench.output.add(rank_on("a", 0, 0, 0), 1, "0|", "", "0|x\n");
    CHECK(bench.shown.empty());
    bench.loop.run_for(std::chrono::seconds(10));  // returns after the timer, its only work
    bench.loop.restart();
    CHECK(bench.shown == Shown{{1, "0|x\n"}});
  }
}

TEST_CASE("a new attempt starts with nothing held") {
  Bench bench("{rank}|");
  bench.output.begin(2);
  bench.output.add(rank_on("a", 0, 0, 0), 1, "0|", "", "0|x\n");
  bench.output.begin(2);
  CHECK(bench.shown == Shown{{1, "0|x\n"}});
  bench.output.add(rank_on("b", 1, 0, 0), 1, "1|", "", "1|x\n");
  bench.output.stop_timer();
  bench.output.flush();
  CHECK(bench.shown == Shown{{1, "0|x\n"}, {1, "1|x\n"}});
}

using Texts = std::vector<std::string>;

/// A fold and its output: "0-2 text", with "!" before a line of stderr.
struct FoldBench {
  explicit FoldBench(std::size_t everyone) : fold(everyone) {}
  LineFold fold;
  Texts out;
  LineFold::Sink sink = [this](const LineFold::Line& line) {
    out.push_back((line.stream == 2 ? "!" : "") + ddp::format_number_set(line.ranks) + ' ' +
                  std::string(line.text));
  };
  void add(int rank, const std::string& text, int ms, std::uint8_t stream = 1) {
    fold.add(rank, stream, text, "", milliseconds(ms), sink);
  }
  void tick(int ms) { fold.tick(milliseconds(ms), sink); }
  void flush() { fold.flush(sink); }
};

TEST_CASE("equal lines of several ranks are merged") {
  FoldBench bench(4);
  bench.add(1, "hello", 0);
  bench.add(0, "hello", 10);
  bench.add(3, "hello", 20);
  CHECK(bench.out.empty());
  CHECK(bench.fold.deadline() == LineFold::Time(milliseconds(100)));
  bench.tick(99);
  CHECK(bench.out.empty());
  bench.tick(100);
  CHECK(bench.out == Texts{"0-1,3 hello"});
  CHECK_FALSE(bench.fold.deadline());
  CHECK(bench.fold.held() == 0);
}

TEST_CASE("a line that all ranks have written is released at once") {
  FoldBench bench(2);
  bench.add(0, "hello", 0);
  bench.add(1, "hello", 1);
  CHECK(bench.out == Texts{"0-1 hello"});
  FoldBench alone(1);
  alone.add(0, "x", 0);
  CHECK(alone.out == Texts{"0 x"});
}

TEST_CASE("a folded line does not overtake lines of its ranks") {
  FoldBench bench(3);
  bench.add(0, "a", 0);
  bench.add(1, "b", 1);
  bench.add(1, "a", 2);  // joins nothing: the line a of rank 0 is printed before b
  bench.add(0, "b", 3);  // joins b, which is printed after a
  bench.flush();
  CHECK(bench.out == Texts{"0 a", "0-1 b", "1 a"});
}

TEST_CASE("different lines between equal ones do not prevent merging") {
  FoldBench bench(3);
  for (int rank = 0; rank < 3; ++rank) {
    for (const std::string text : {"begin", "own", "more", "end"})
      bench.add(rank, text == "own" || text == "more" ? text + std::to_string(rank) : text, rank);
  }
  bench.flush();
  CHECK(bench.out ==
        Texts{"0-2 begin", "0 own0", "1 own1", "2 own2", "0 more0", "1 more1", "2 more2", "0-2 end"});
}

TEST_CASE("a rank's own first line does not prevent later merging") {
  FoldBench bench(9);
  bench.add(0, "hello 0", 0);
  bench.add(0, "same", 1);
  bench.add(1, "hello 1", 2);
  bench.add(1, "same", 3);
  bench.tick(100);
  // A line that is old enough is printed together with the lines before it.
  CHECK(bench.out == Texts{"0 hello 0"});
  bench.tick(101);
  CHECK(bench.out == Texts{"0 hello 0", "1 hello 1", "0-1 same"});
}

TEST_CASE("a line that no rank can join is released at once") {
  FoldBench bench(2);
  bench.add(0, "a", 0);
  bench.add(1, "b", 1);
  CHECK(bench.out == Texts{"0 a"});
  bench.add(0, "c", 2);
  CHECK(bench.out == Texts{"0 a", "1 b"});
}

TEST_CASE("a line that one rank writes twice is shown twice") {
  FoldBench bench(2);
  bench.add(0, "x", 0);
  bench.add(0, "x", 1);
  bench.add(1, "x", 2);
  bench.add(1, "x", 3);
  bench.add(1, "x", 4);
  bench.flush();
  CHECK(bench.out == Texts{"0-1 x", "0-1 x", "1 x"});
}

TEST_CASE("streams are not mixed, and keep a rank's order") {
  FoldBench bench(4);
  bench.add(0, "x", 0, 1);
  bench.add(1, "x", 1, 2);
  bench.add(2, "x", 2, 2);
  bench.add(0, "y", 3, 2);
  bench.add(2, "x", 4, 1);
  bench.flush();
  CHECK(bench.out == Texts{"0 x", "!1-2 x", "!0 y", "2 x"});
}

TEST_CASE("the held memory is bounded for any input") {
  FoldBench bench(2);
  for (int i = 0; i < 30; ++i) {
    bench.add(0, std::to_string(i) + std::string(100'000, 'x'), 0);
    CHECK(bench.fold.held() <= LineFold::kMaxHeld);
  }
  bench.flush();
  CHECK(bench.out.size() == 30);
  CHECK(bench.fold.held() == 0);
}

TEST_CASE("no line is lost or late, and each rank keeps its order") {
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 9);
    const int words = 1 + static_cast<int>(random() % 6);
    std::map<int, Texts> went_in;
    std::map<int, Texts> came_out;
    LineFold fold(static_cast<std::size_t>(ranks));
    bool is_lost = false;  // checked at the end: an assertion for each line would take most of the time
    const LineFold::Sink sink = [&](const LineFold::Line& line) {
      is_lost = is_lost || line.ranks.empty();
      for (const int rank : line.ranks)
        came_out[rank].push_back(std::to_string(line.stream) + std::string(line.text));
    };
    int now = 0;
    std::size_t in = 0;
    for (int i = 0; i < 1000; ++i) {
      now += static_cast<int>(random() % 20) / 10;
      const int rank = static_cast<int>(random()) & 0xff;
      const auto stream = static_cast<std::uint8_t>(random() % 8 == 0 ? 2 : 1);
      const std::string text = "w" + std::to_string(random() % static_cast<unsigned>(words));
      went_in[rank % ranks].push_back(std::to_string(stream) + text);
      fold.add(rank % ranks, stream, text, "", milliseconds(now), sink);
      ++in;
      if (random() % 50 == 0) {
        fold.tick(milliseconds(now), sink);
        if (const auto deadline = fold.deadline()) CHECK(*deadline > milliseconds(now));
      }
      if (random() % 200 == 0) {
        fold.flush(sink);
        CHECK(came_out == went_in);
      }
    }
    fold.flush(sink);
    CHECK_FALSE(is_lost);
    CHECK(came_out == went_in);
    CHECK(fold.held() == 0);
    CHECK_FALSE(fold.deadline());
  }
}

}  // namespace
}  // namespace ddp::launcher
