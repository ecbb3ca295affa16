#include "launcher/report/host_history.h"

#include <csignal>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;
using std::chrono::days;

constexpr HistoryTime kNow{std::chrono::seconds(1'795'230'119)};

Failure lost(const std::string& host) {
  Failure failure;
  failure.kind = Failure::Kind::kNode;
  failure.host = host;
  failure.error = {ErrorCode::kLinkLost, "no heartbeat for 17 s", 0};
  failure.happened = {50s, 60s};
  return failure;
}

Failure killed(const std::string& host, const std::string& xid) {
  Failure failure;
  failure.kind = Failure::Kind::kSignaled;
  failure.host = host;
  failure.signal = SIGABRT;
  failure.evidence.xid = xid;
  failure.happened = {50s, 60s};
  return failure;
}

/// The job began at 0 s and ended 100 s later, at kNow.
std::vector<HostFault> faults_of(const JobEnd& end, const OwnMachine& own = {"head", {"localhost"}}) {
  JobFacts facts;
  facts.job_id = "run7";
  facts.ended = 100s;
  facts.ended_at = kNow;
  return host_faults(end, facts, own);
}

std::string causes_of(const JobEnd& end) {
  std::string text;
  for (const HostFault& fault : faults_of(end))
    text += (text.empty() ? "" : ", ") + fault.host + ' ' + fault.cause;
  return text;
}

std::string line(const std::string& host, days ago, const std::string& cause, bool is_hardware = false) {
  return fault_line({host, kNow - ago, cause, is_hardware, "run7"});
}

std::string texts_of(const HostHistory& history) {
  std::string text;
  for (const HostRecord& record : history.records())
    text += record.host + ": " + record.text() + (record.is_bad() ? ", bad\n" : "\n");
  return text;
}

constexpr char kXid79[] = "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus";
constexpr char kXid31[] = "NVRM: Xid (PCI:0000:65:00): 31, MMU fault";

TEST_CASE("the loss of one node and a hardware error of a GPU belong to the host") {
  JobEnd end;
  end.failures = {lost("gpu07")};
  const auto faults = faults_of(end);
  REQUIRE(faults.size() == 1);
  CHECK(faults[0].host == "gpu07");
  CHECK(faults[0].cause == "lost");
  CHECK_FALSE(faults[0].is_hardware);
  CHECK(faults[0].job == "run7");
  CHECK(faults[0].time == kNow - 40s);
  end.failures = {killed("gpu07", std::string(kXid31) + '\n' + kXid79)};
  CHECK(causes_of(end) == "gpu07 Xid 79");
  CHECK(faults_of(end)[0].is_hardware);
}

TEST_CASE("the root cause of each attempt counts, and no consequence") {
  JobEnd end;
  end.earlier = {lost("gpu07"), killed("gpu08", kXid79)};
  end.failures = {killed("gpu07", kXid79), killed("gpu01", "")};
  end.failures[1].happened = {70s, 80s};
  CHECK(causes_of(end) == "gpu07 lost, gpu08 Xid 79, gpu07 Xid 79");
  end.stop_signal = SIGINT;
  CHECK(causes_of(end) == "gpu07 lost, gpu08 Xid 79");
}

TEST_CASE("failures of programs, starts, networks and schedulers belong to no host") {
  JobEnd end;
  end.failures = {killed("gpu07", kXid31)};
  CHECK(causes_of(end) == "");
  end.failures = {lost("gpu07")};
  end.failures[0].error.code = ErrorCode::kUnreachable;
  CHECK(causes_of(end) == "");
  end.failures = {lost("gpu07")};
  end.failures[0].error.sys = SIGTERM;
  CHECK(causes_of(end) == "");
  end.failures = {lost("gpu07"), lost("gpu08")};
  CHECK(causes_of(end) == "");
  end.failures = {lost("gpu07"), lost("gpu07")};  // named again with a better reason
  CHECK(causes_of(end) == "gpu07 lost");
  end.failures.clear();
  end.earlier = {lost("gpu07")};
  end.earlier[0].nodes_lost = 2;
  CHECK(causes_of(end) == "");
}

TEST_CASE("this machine is not lost, and its hardware counts under its name") {
  JobEnd end;
  end.failures = {lost("localhost")};
  CHECK(causes_of(end) == "");
  end.failures = {killed("localhost", kXid79)};
  CHECK(causes_of(end) == "head Xid 79");
}

TEST_CASE("lines of several users and jobs become one record of a host") {
  HostHistory history(kNow);
  history.add(line("gpu07", days(1), "Xid 79", true) + line("gpu01", days(2), "lost"), 1000, false);
  history.add(line("gpu07", days(3), "Xid 79", true) + line("gpu07", days(6), "Xid 79", true), 1001, false);
  CHECK(texts_of(history) ==
        "gpu07: 3 failures in 7 days (Xid 79), bad\n"
        "gpu01: 1 failure in 7 days (lost)\n");
  history.add(line("gpu01", days(0), "lost") + line("gpu07", days(0), "lost"), 1000, false);
  CHECK(texts_of(history) ==
        "gpu07: 4 failures in 7 days (3 × Xid 79, lost), bad\n"
        "gpu01: 2 failures in 7 days (lost), bad\n");
}

TEST_CASE("old failures are kept, and do not count") {
  HostHistory history(kNow);
  history.add(line("gpu07", days(8), "lost") + line("gpu07", days(89), "Xid 79", true) +
                  line("gpu07", days(91), "lost") + line("gpu08", days(-2), "lost"),
              1000, false);
  const auto records = history.records();
  REQUIRE(records.size() == 1);
  CHECK(records[0].failures == 0);
  CHECK(records[0].kept == 2);
  CHECK_FALSE(records[0].is_bad());
  CHECK(records[0].last == kNow - days(8));
}

TEST_CASE("a user forgets own failures, and the owner of the directory those of all") {
  const auto history_with = [](std::uint32_t forgets, bool is_owner) {
    HostHistory history(kNow);
    history.add(forget_line("gpu07", kNow - days(1)), forgets, is_owner);
    history.add(line("gpu07", days(2), "lost"), 1000, false);
    history.add(line("gpu07", days(2), "lost") + line("gpu08", days(2), "lost"), 1001, false);
    return texts_of(history);
  };
  CHECK(history_with(1000, false) ==
        "gpu07: 1 failure in 7 days (lost)\ngpu08: 1 failure in 7 days (lost)\n");
  CHECK(history_with(0, true) == "gpu08: 1 failure in 7 days (lost)\n");
  HostHistory later(kNow);
  later.add(forget_line("gpu07", kNow - days(2)) + line("gpu07", days(1), "lost"), 0, true);
  CHECK(texts_of(later) == "gpu07: 1 failure in 7 days (lost)\n");
}

TEST_CASE("a line with any texts has its limit, and is read again") {
  const std::string long_line =
      fault_line({std::string(5000, 'h'), kNow, std::string(5000, '\n'), false, std::string(5000, '"')});
  CHECK(long_line.size() <= kHistoryLine);
  CHECK(long_line.find('\n') == long_line.size() - 1);
  CHECK(nlohmann::json::parse(long_line)["host"] == std::string(255, 'h'));
  HostHistory history(kNow);
  history.add(fault_line({"gpu07", kNow, "lost\x1b[2J\xff", false, "run7"}), 1000, false);
  CHECK(texts_of(history) == "gpu07: 1 failure in 7 days (lost\\x1b[2J\xef\xbf\xbd)\n");
}

TEST_CASE("lines of strangers are skipped, and never end the program") {
  HostHistory history(kNow);
  const std::string good = line("gpu07", days(1), "lost");
  std::string bad = "\n\n{}\n[]\nnull\n{\"format\":1}\n\xff\xfe\n" + std::string(100'000, '[') + "\n" +
                    "{\"format\":2,\"host\":\"gpu08\",\"time\":1795230119,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":[\"gpu08\"],\"time\":1795230119,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":\"gpu08\",\"time\":18446744073709551615,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":\"gpu08\",\"time\":-9223372036854775808,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":\"gpu08\",\"time\":1.795e9,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":\"\",\"time\":1795230119,\"cause\":\"lost\"}\n"
                    "{\"format\":1,\"host\":\"" +
                    std::string(300, 'h') + "\",\"time\":1795230119}\n";
  history.add(bad + good + good.substr(0, good.size() / 2), 1000, false);
  CHECK(texts_of(history) == "gpu07: 1 failure in 7 days (lost)\n");
  for (std::size_t cut = 0; cut < good.size(); ++cut) {  // a full disk
    HostHistory torn(kNow);
    torn.add(good.substr(0, cut) + '\n' + good, 1000, false);
    CHECK(torn.records().size() == 1);
  }
}

TEST_CASE("the history is a table, or JSON") {
  HostHistory history(kNow);
  history.add(line("gpu07", days(1), "Xid 79", true) + line("gpu01", days(20), "lost"), 1000, false);
  CHECK(history_text(history.records(), "/h") ==
        "host   7 days  90 days  causes  last                      state\n"
        "gpu07  1       1        Xid 79  2026-11-20T03:01:59.000Z  bad\n"
        "gpu01  0       1        lost    2026-11-01T03:01:59.000Z\n");
  CHECK(history_text({}, "/h") == "no failures of hosts in /h\n");
  const auto json = nlohmann::json::parse(history_json(history.records(), "/h"));
  CHECK(json["window_days"] == 7);
  CHECK(json["hosts"][0]["host"] == "gpu07");
  CHECK(json["hosts"][0]["bad"] == true);
  CHECK(json["hosts"][1]["failures"] == 0);
}

}  // namespace
}  // namespace ddp::launcher
