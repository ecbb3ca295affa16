#include "apps/ddplaunch/operate/operate_options.h"

#include "tests/support/catch.h"

namespace ddp {
namespace {

TEST_CASE(
    "a first word that is nearly a verb, or another program's verb, is an error that names what is meant") {
  const std::pair<const char*, const char*> mistakes[] = {
      {"statu", "status"}, {"stauts", "status"}, {"stp", "stop"},           {"log", "logs"},
      {"checkk", "check"}, {"host", "hosts"},    {"dashbord", "dashboard"}, {"list", "ps"},
      {"jobs", "ps"},      {"kill", "stop"},     {"monitor", "top"},        {"version", "--version"},
      {"delete", "rm"},    {"launch", "WORKER"}, {"Status", "status"},      {"Ps", "ps"},
      {"WAIT", "wait"}};
  for (const auto& [word, meant] : mistakes) {
    CHECK(mistyped_verb({word, "job7"}) ==
          '"' + std::string(word) + "\" is no verb of ddplaunch; did you mean `ddplaunch " + meant +
              "`? A program of this name runs with `ddplaunch -- " + word + '`');
  }
  CHECK(mistyped_verb({"prune", "job7"}) ==
        "\"prune\" is no verb of ddplaunch; a program of this name runs with `ddplaunch -- prune`");
}

TEST_CASE("verbs, programs, paths, scripts, options and words behind them are no mistyped verbs") {
  for (const char* word :
       {"ps",      "status", "check",      "hosts",   "train",     "ls",      "sh",        "cat",
        "env",     "date",   "bash",       "echo",    "true",      "test",    "sleep",     "hostname",
        "python3", "uname",  "nvidia-smi", "./statu", "/bin/kill", "list.py", "launch.sh", "--nproc-per-node",
        ""})
    CHECK(mistyped_verb({word, "statu"}) == "");
  CHECK(mistyped_verb({"--", "kill"}) == "");
  CHECK(mistyped_verb({}) == "");
}

}  // namespace
}  // namespace ddp
