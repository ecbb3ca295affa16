#include "launcher/report/exit_report.h"

#include <chrono>
#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

JobEnd ended_job(int restarts = 0) {
  JobEnd end;
  end.restarts = restarts;
  end.job = "job run7: 2 nodes × 8 workers";
  end.job_dir = "/jobs/run7";
  return end;
}

TEST_CASE("a long successful run names its files and figures") {
  CHECK(text_with_summary({}, ended_job(2), {3h + 25min, 1'395'864'371, 0.9614}, false) ==
        "ddplaunch: job run7: 2 nodes × 8 workers, files in /jobs/run7\n"
        "ddplaunch: succeeded after 3 h 25 min, 2 restarts, goodput 96.1 %, 1.3 GiB of output\n");
}

TEST_CASE("a short run without restarts has a summary only on request") {
  CHECK(text_with_summary({}, ended_job(), {59s, 12, 0}, false).empty());
  CHECK(text_with_summary({}, ended_job(), {59s, 12, 0}, true)
            .ends_with("succeeded after 59.0 s, goodput 0.0 %, 12 B of output\n"));
  CHECK(text_with_summary({}, ended_job(1), {2s, 12, 0}, false)
            .ends_with("succeeded after 2.0 s, 1 restart, goodput 0.0 %, 12 B of output\n"));
}

TEST_CASE("the last line of a failure stays the last one") {
  const ExitReport report{3, "ddplaunch: the job failed\n  root\nddplaunch: exit 3: why\n", "why"};
  CHECK(text_with_summary(report, ended_job(2), {59s, 12, 0}, false) == report.text);
  CHECK(text_with_summary(report, ended_job(2), {5min, 2048, 0.5}, false) ==
        "ddplaunch: the job failed\n  root\n  ran for 5 min, goodput 50.0 %, 2.0 KiB of output\nddplaunch: "
        "exit 3: why\n");
  const ExitReport one_line{2, "ddplaunch: exit 2: why\n", "why"};
  CHECK(text_with_summary(one_line, ended_job(), {5min, 0, 0}, false) ==
        "  ran for 5 min, goodput 0.0 %, 0 B of output\nddplaunch: exit 2: why\n");
}

}  // namespace
}  // namespace ddp::launcher
