#include "launcher/report/host_texts.h"

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

TEST_CASE("lists of hosts") {
  CHECK(host_list({}).empty());
  CHECK(host_list({"a"}) == "a");
  CHECK(host_list({"a", "b"}) == "a and b");
  CHECK(host_list({"a", "b", "c", "d", "e"}) == "a, b, c, d and e");
  CHECK(host_list({"a", "b", "c", "d", "e", "f"}) == "a, b, c, d and 2 more hosts");
}

TEST_CASE("a sweep says what it found, or which command to run") {
  CHECK(swept_text(0, {}, "j") == "nothing of the job was left there");
  CHECK(swept_text(1, {}, "j") == "1 process of the job was left there, and ended");
  CHECK(swept_text(3, {}, "j") == "3 processes of the job were left there, and ended");
  CHECK(swept_text(3, {"7 (a)"}, "j") ==
        "1 process of the job may live there: 7 (a); run `ddplaunch clean j` when the job has ended, and end "
        "there what that leaves");
  CHECK(swept_text(0, {"1", "2", "3", "4", "5\n6", "7"}, "j") ==
        "6 processes of the job may live there: 1, 2, 3, 4 and 2 more; run `ddplaunch clean j` when the job "
        "has ended, and end there what that leaves");
  CHECK(not_swept_text("no route\nto host", "j1", true) ==
        "its processes may live, since nobody could search there (no route\\nto host); run `ddplaunch clean "
        "j1` when the "
        "job has ended");
  CHECK(not_swept_text("x", "j1", false)
            .ends_with("run there `grep -lz DDPLAUNCH_JOB_ID=j1 /proc/[0-9]*/environ`, which names them"));
}

}  // namespace
}  // namespace ddp::launcher
