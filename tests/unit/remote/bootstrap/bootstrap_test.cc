#include "remote/bootstrap/bootstrap.h"

#include <deque>
#include <regex>
#include <string>
#include <vector>

#include "remote/hosts/shell_command.h"
#include "tests/support/catch.h"

namespace ddp::remote {
namespace {

using State = ddp::remote::Bootstrap::State;

Bootstrap fresh() {
  return Bootstrap("gpu01", "/opt/ddp/ddplaunchd");
}

TEST_CASE("the greeting is read at once and byte by byte") {
  const std::string line = hello_line({3, "0.1.0~rc1+git-2"});
  CHECK(line == "ddplaunchd-hello 3 0.1.0~rc1+git-2\n");
  Bootstrap whole = fresh();
  CHECK(whole.feed(line) == State::kHello);
  CHECK(whole.hello().protocol == 3);
  CHECK(whole.hello().version == "0.1.0~rc1+git-2");
  CHECK(whole.rest().empty());
  CHECK(whole.noise().empty());

  Bootstrap slow = fresh();
  for (std::size_t i = 0; i + 1 < line.size(); ++i)
    CHECK(slow.feed(line.substr(i, 1)) == State::kReading);
  CHECK(slow.feed("\n") == State::kHello);
  CHECK(slow.hello().version == "0.1.0~rc1+git-2");
}

TEST_CASE("any bytes after the greeting start the protocol") {
  Bootstrap boot = fresh();
  const std::string frame(
      "\0\1\n\xff"
      "ddplaunchd-hello 9 x\n",
      25);
  CHECK(boot.feed("ddplaunchd-hello 1 0.1.0\n" + frame) == State::kHello);
  CHECK(boot.feed("more") == State::kHello);
  CHECK(boot.rest() == frame + "more");
  CHECK(boot.hello().protocol == 1);
}

TEST_CASE("output of the login shell comes first, also without a final newline") {
  Bootstrap boot = fresh();
  CHECK(boot.feed("Welcome to gpu01\r\n\n\x1b[31mred\x07\nprompt> ddplaunchd-") == State::kReading);
  CHECK(boot.feed("hello 1 0.1.0\n") == State::kHello);
  const auto noise = boot.noise();
  REQUIRE(noise.size() == 3);
  CHECK(noise[0] == "Welcome to gpu01");
  CHECK(noise[1] == "?[31mred?");
  CHECK(noise[2] == "prompt> ");
}

TEST_CASE("only the last 20 lines of shell output are kept, and long ones are cut") {
  Bootstrap boot = fresh();
  for (int i = 0; i < 30; ++i)
    boot.feed("line " + std::to_string(i) + "\n");
  boot.feed(std::string(5000, 'x') + "\n");
  CHECK(boot.feed("ddplaunchd-hello 1 0.1.0\n") == State::kHello);
  REQUIRE(boot.noise().size() == 20);
  CHECK(boot.noise().front() == "line 11");
  CHECK(boot.noise().back() == std::string(400, 'x') + "...");
}

TEST_CASE("more than 64 KiB before the greeting is an error, with or without line ends") {
  for (const char* piece : {"y\n", "yy"}) {
    Bootstrap boot = fresh();
    State state = State::kReading;
    std::size_t fed = 0;
    while (state == State::kReading && fed < 100'000) {
      state = boot.feed(piece);
      fed += 2;
    }
    CHECK(state == State::kFailed);
    CHECK(fed == 64 * 1024 + 2);
    CHECK(boot.failure().code == ErrorCode::kAgentMismatch);
  }
  const auto talk = [](Bootstrap boot) {
    for (int i = 0; i < 400; ++i)
      boot.feed(std::string(200, 'z') + "\n");
    return boot.failure();
  };
  CHECK(talk(fresh()).text.starts_with(
      "gpu01: 64 KiB came without a greeting of /opt/ddp/ddplaunchd; its last lines:\n  zzz"));
  // Before our command has written anything, the agent is not the cause.
  const auto early = talk(Bootstrap("gpu01", "/opt/ddp/ddplaunchd", Bootstrap::Lookup::kGiven));
  CHECK(early.code == ErrorCode::kUnreachable);
  CHECK(
      early.text.starts_with("gpu01: the login shell there printed 64 KiB before the search for ddplaunchd "
                             "began; check which start-up file prints that much; its last lines:\n  zzz"));
}

TEST_CASE("a greeting within exactly 64 KiB still counts") {
  const std::string line = "ddplaunchd-hello 1 0.1.0\n";
  Bootstrap boot = fresh();
  CHECK(boot.feed(std::string(64 * 1024 - line.size() - 1, 'n') + "\n") == State::kReading);
  CHECK(boot.feed(line) == State::kHello);
}

TEST_CASE("a damaged greeting is reported, never guessed") {
  for (const char* words : {"", "1", "x 0.1.0", "0 0.1.0", "-1 0.1.0", "1 ", "1 0.1 0", "1 0.1.0\r",
                            "99999999999 1", "1 \x1b[2J"}) {
    Bootstrap boot = fresh();
    CAPTURE(words);
    CHECK(boot.feed("ddplaunchd-hello " + std::string(words) + "\n") == State::kFailed);
  }
  Bootstrap boot = fresh();
  boot.feed("ddplaunchd-hello 1 0.1 \x01\n");
  CHECK(boot.failure().code == ErrorCode::kAgentMismatch);
  CHECK(boot.failure().text ==
        "gpu01: the greeting of /opt/ddp/ddplaunchd cannot be read: \"ddplaunchd-hello 1 0.1 ?\"; install "
        "the same "
        "version there or name it with --agent PATH");
}

TEST_CASE("exit status 127 means a missing program") {
  Bootstrap sh = fresh();
  sh.feed_errors("sh: 1: /opt/ddp/ddplaunchd: not found\n");
  CHECK(sh.ended(127).code == ErrorCode::kAgentMissing);
  CHECK(sh.ended(127).text ==
        "gpu01: no ddplaunchd at /opt/ddp/ddplaunchd; install the same version there or name it with --agent "
        "PATH");
  Bootstrap other = fresh();
  other.feed("This account is currently not available.\n");
  CHECK(other.ended(1).code == ErrorCode::kAgentMismatch);
  CHECK(other.ended(1).text ==
        "gpu01: /opt/ddp/ddplaunchd ended with exit status 1 before its greeting; its last lines:\n"
        "  This account is currently not available.");
}

TEST_CASE("a wrapper that prints its command instead of running it is named") {
  for (const auto lookup : {Bootstrap::Lookup::kGiven, Bootstrap::Lookup::kPush}) {
    Bootstrap boot("gpu01", "/opt/ddp/ddplaunchd", lookup, "the wrapper (echo)");
    std::string command;
    const auto words = lookup == Bootstrap::Lookup::kPush
                           ? ddp::remote::first_lookup({"/opt/ddp/ddplaunchd", {}, {"abc"}, false}, false)
                           : ddp::remote::given_lookup({"/opt/ddp/ddplaunchd", "--stdio"});
    for (const std::string& word : words)
      command += word + " ";
    CHECK(boot.feed(command + "\n") == Bootstrap::State::kReading);
    CHECK(boot.ended(0).code == ErrorCode::kUnreachable);
    CHECK(boot.ended(0).text ==
          "gpu01: the wrapper (echo) printed the command behind it and did not run it; it must run it, as "
          "'docker exec -i NAME' does");
  }
}

TEST_CASE("ends before the greeting are reported") {
  Bootstrap boot = fresh();
  CHECK(boot.ended(0).text ==
        "gpu01: /opt/ddp/ddplaunchd ended with exit status 0 before its greeting; it wrote nothing");
  CHECK(boot.ended(137).text ==
        "gpu01: /opt/ddp/ddplaunchd ended with exit status 137 (128 + SIGKILL) before its greeting; it wrote "
        "nothing");
  CHECK(boot.ended(std::nullopt).code == ErrorCode::kUnreachable);
  CHECK(boot.ended(std::nullopt).text ==
        "gpu01: the connection closed before /opt/ddp/ddplaunchd answered; it wrote nothing");
  boot.feed("half a line");
  boot.feed_errors("Permission denied\n");
  CHECK(boot.ended(126).code == ErrorCode::kAgentMismatch);
  CHECK(boot.ended(126).text ==
        "gpu01: /opt/ddp/ddplaunchd cannot be executed there; install the same version there or name it with "
        "--agent PATH; its last lines:\n  half a line\n  Permission denied");
  CHECK(boot.timed_out().code == ErrorCode::kTimeout);
  CHECK(boot.timed_out().text ==
        "gpu01: no greeting of /opt/ddp/ddplaunchd before the start limit; its last lines:\n  half a line\n  "
        "Permission denied");
}

TEST_CASE("a failure before the lookup of the agent is not blamed on the agent") {
  for (const auto lookup : {Bootstrap::Lookup::kGiven, Bootstrap::Lookup::kPush}) {
    Bootstrap boot("gpu01", "/opt/ddp/ddplaunchd", lookup, "the wrapper (docker exec -i train)");
    boot.feed_errors("Error: No such container: train\n");
    for (const int status : {0, 1, 125, 126, 127})
      CHECK(boot.ended(status).code == ErrorCode::kUnreachable);
    CHECK(boot.ended(1).text ==
          "gpu01: the wrapper (docker exec -i train) ended with exit status 1 before the search for "
          "ddplaunchd began; its last lines:\n  Error: No such container: train");
    CHECK(
        boot.ended(137).text.starts_with("gpu01: the wrapper (docker exec -i train) ended with exit status "
                                         "137 (128 + SIGKILL) before the search"));
    CHECK(boot.timed_out().text ==
          "gpu01: no greeting of /opt/ddp/ddplaunchd before the start limit; is the wrapper (docker exec -i "
          "train) waiting for something?; its last lines:\n  Error: No such container: train");
  }
}

TEST_CASE("a started agent is named by its own path, and its end is reported as its own") {
  for (const auto lookup : {Bootstrap::Lookup::kGiven, Bootstrap::Lookup::kPush}) {
    Bootstrap boot("gpu01", "/opt/ddp/ddplaunchd", lookup);
    CHECK(boot.began().empty());
    CHECK(boot.feed("Welcome\nprompt> ddplaunchd-runs /home/a b/ddplaunchd\n") == State::kReading);
    CHECK(boot.began() == "/home/a b/ddplaunchd");
    CHECK(boot.ended(110).code == ErrorCode::kAgentMismatch);
    CHECK(boot.ended(110).text ==
          "gpu01: /home/a b/ddplaunchd ended with exit status 110 before its greeting; its last lines:\n"
          "  Welcome\n  prompt> ");
    CHECK(boot.ended(127).code == ErrorCode::kAgentMissing);
    CHECK(boot.feed("ddplaunchd-hello 1 0.1.0\n") == State::kHello);
  }
}

TEST_CASE("a given agent that cannot run is reported in the host's words") {
  Bootstrap boot("gpu01", "/etc", Bootstrap::Lookup::kGiven);
  CHECK(boot.feed("ddplaunchd-fail /etc is a directory, not the program ddplaunchd\n") == State::kFailed);
  CHECK(boot.failure().code == ErrorCode::kAgentMissing);
  CHECK(boot.failure().text ==
        "gpu01: /etc is a directory, not the program ddplaunchd; install the same version there or name it "
        "with --agent "
        "PATH");
}

TEST_CASE("another version or protocol is refused, with both versions") {
  CHECK(check_hello("gpu01", {1, "0.1.0"}, {1, "0.1.0"}).has_value());
  const auto other = check_hello("gpu01", {2, "0.2.0"}, {1, "0.1.0"});
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().code == ErrorCode::kAgentMismatch);
  CHECK(other.error().text ==
        "gpu01: its ddplaunchd is version 0.2.0 (protocol 2), this ddplaunch is version 0.1.0 (protocol 1); "
        "install the "
        "same version there or name it with --agent PATH");
  CHECK_FALSE(check_hello("gpu01", {1, "0.1.1"}, {1, "0.1.0"}).has_value());
}

TEST_CASE("the last lines do not depend on the chunks") {
  const std::string text = "one\ntwo\r\n\nthree";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    TailLines tail;
    tail.feed(text.substr(0, cut));
    tail.feed(text.substr(cut));
    CHECK(tail.text("| ") == "\n| one\n| two\n| three");
  }
}

// ---- hosts that receive the agent

Bootstrap pushing() {
  return Bootstrap("gpu01", "/opt/ddp/ddplaunchd", Bootstrap::Lookup::kPush);
}

TEST_CASE("a host without an agent requests the files, gets them in order, and greets") {
  Bootstrap boot = pushing();
  CHECK(boot.feed("Welcome\nprompt> ddplaunchd-need x86_64 127 1\n") == State::kNeed);
  CHECK(boot.need().machine == "x86_64");
  CHECK(boot.need().attempts == std::vector<int>{127, 1});
  CHECK(boot.advance() == State::kReading);
  CHECK(boot.feed("ddplaunchd-send 0\nddplaunchd-send 1\n") == State::kSend);
  CHECK(boot.wanted_file() == 0);
  CHECK(boot.advance() == State::kSend);
  CHECK(boot.wanted_file() == 1);
  CHECK(boot.advance() == State::kReading);
  CHECK(boot.feed("ddplaunchd-hello 1 0.1.0\nFRAME") == State::kHello);
  CHECK(boot.rest() == "FRAME");
  CHECK(boot.noise() == std::deque<std::string>{"Welcome", "prompt> "});
}

TEST_CASE("a host that cannot store the agent reports the reason") {
  Bootstrap boot = pushing();
  CHECK(boot.feed("ddplaunchd-need x86_64 127\n") == State::kNeed);
  CHECK(boot.advance() == State::kReading);
  CHECK(boot.feed("ddplaunchd-fail no place to put it: /home/a: Disk quota exceeded\n") == State::kFailed);
  CHECK(boot.failure().code == ErrorCode::kAgentMissing);
  CHECK(boot.failure().text ==
        "gpu01: ddplaunchd is not installed there, and copying it failed: no place to put it: /home/a: Disk "
        "quota "
        "exceeded; install the same version there or name it with --agent PATH");
}

TEST_CASE("a request that is repeated, out of order or too early is a damaged greeting") {
  for (const char* lines :
       {"ddplaunchd-send 0\n", "ddplaunchd-need x86_64\nddplaunchd-need x86_64\n",
        "ddplaunchd-need x86_64\nddplaunchd-send 1\n", "ddplaunchd-need x86_64\nddplaunchd-send x\n",
        "ddplaunchd-need x86_64\nddplaunchd-send 0\nddplaunchd-send 0\n"}) {
    CAPTURE(lines);
    Bootstrap boot = pushing();
    State state = boot.feed(lines);
    while (state == State::kNeed || state == State::kSend)
      state = boot.advance();
    CHECK(state == State::kFailed);
    CHECK(boot.failure().code == ErrorCode::kAgentMismatch);
  }
}

TEST_CASE("without a push those lines are the host's own output") {
  Bootstrap boot = fresh();
  CHECK(boot.feed("ddplaunchd-need x86_64 127\nddplaunchd-fail x\n") == State::kReading);
  CHECK(boot.noise().size() == 2);
}

TEST_CASE("a host without sh is reported") {
  Bootstrap boot = pushing();
  boot.feed_errors("exec: \"sh\": executable file not found in $PATH\n");
  CHECK(boot.ended(127).code == ErrorCode::kUnreachable);
  CHECK(boot.ended(127).text ==
        "gpu01: the login shell there ended with exit status 127 before the search for ddplaunchd began; its "
        "last lines:\n  exec: \"sh\": executable file not found in $PATH");
}

const AgentWanted kWanted{"/opt/ddp/bin/ddplaunchd", {7, "0.1.0"}, {"aa11", "bb22"}, false};

/// The script of a command, which comes in several words.
std::string script_of(const std::vector<std::string>& words) {
  std::string script;
  for (std::size_t i = 4; i < words.size(); ++i)
    script += words[i];
  return script;
}

TEST_CASE("the first command tries the installed agent, then the cached ones") {
  const auto words = first_lookup(kWanted);
  REQUIRE(words.size() > 4);
  CHECK(words[0] == "sh");
  CHECK(words[1] == "-c");
  CHECK(words[3] == "/opt/ddp/bin/ddplaunchd");
  const std::string script = script_of(words);
  CHECK(script.find("for k in - aa11 bb22; do") != std::string::npos);
  CHECK(script.find("w=$(\"$b\" --fits 7 0.1.0 aa11 bb22 ") != std::string::npos);
  CHECK(script.find("case \"$r aa11 bb22 \" in 0*\" $w \"*) ") != std::string::npos);
  CHECK(script.find("program \"$b\"") == std::string::npos);
  CHECK_FALSE(std::regex_search(script, std::regex("@[A-Z]+@")));  // every placeholder is replaced
}

TEST_CASE("the first command has no characters that login shells interpret differently") {
  for (const bool train : {false, true}) {
    AgentWanted wanted = kWanted;
    wanted.train = train;
    // csh expands '!' inside single quotes, fish reads a backslash there; and csh words are short.
    for (const std::string& word : first_lookup(wanted)) {
      CHECK(word.find_first_of("'!\\\n") == std::string::npos);
      CHECK(word.size() < 1000);
    }
    CHECK(shell_quote(first_lookup(wanted)).has_value());
  }
  for (const std::string& word : given_lookup({"/opt/ddplaunchd", "--stdio"}))
    CHECK(word.find_first_of("'!\\\n") == std::string::npos);
  CHECK(first_lookup(kWanted, true)[2].find("fits") == std::string::npos);
}

TEST_CASE("without an agent to copy the installed one is still tried") {
  AgentWanted wanted = kWanted;
  wanted.keys.clear();
  CHECK(script_of(first_lookup(wanted)).find("for k in -; do") != std::string::npos);
}

TEST_CASE("the script is sent with its length, its files and their checksums") {
  AgentWanted wanted = kWanted;
  wanted.train = true;
  const std::string text =
      push_script(wanted, "aa11.cc33", {{"train", 1000, "f00d"}, {"ddplaunchd", 2000, "beef"}});
  const std::size_t newline = text.find('\n');
  CHECK(std::to_string(text.size() - newline - 1) == text.substr(0, newline));
  const std::string script = text.substr(newline + 1);
  CHECK(
      script.starts_with("key=aa11.cc33 total=3000 names=\"train ddplaunchd\" fits=\"7 0.1.0 aa11 bb22\" "
                         "anew=\n"));
  CHECK(script.find("\ntake_all() { take 0 train 1000 f00d; take 1 ddplaunchd 2000 beef; }\n"
                    "verify_all() { verify train f00d; verify ddplaunchd beef; }\n"
                    "beside() { program \"$1\"; }\n") != std::string::npos);
}

TEST_CASE("a terminal that echoes the script does not imitate the agent's messages") {
  Bootstrap boot("gpu01", "/opt/ddp/bin/ddplaunchd", Bootstrap::Lookup::kPush);
  CHECK(boot.feed("ddplaunchd-need x86_64 127\n") == Bootstrap::State::kNeed);
  CHECK(boot.advance() == Bootstrap::State::kReading);
  CHECK(boot.feed(push_script(kWanted, "aa11", {{"ddplaunchd", 2000, "beef"}})) ==
        Bootstrap::State::kReading);
  CHECK(boot.feed(installed_script() + "\n") == Bootstrap::State::kReading);
}

}  // namespace
}  // namespace ddp::remote
