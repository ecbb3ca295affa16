#include "rendezvous/protocol/codec.h"

#include "tests/support/catch.h"

namespace ddp::rendezvous {
namespace {

std::string payload_of(const Message& message) {
  std::string frame;
  append_frame(message, frame);
  return frame.substr(kFrameHeader);
}

JobStart sample_job() {
  JobStart job;
  job.job_id = "j1";
  job.host = "gpu01";
  job.command_kind = 2;
  job.argv = {"train.py", "--lr", "0.1", std::string("\0\n\xff", 3)};
  job.env = {{"A", ""}, {"B", "x=y"}};
  job.devices = {"0", "2"};
  job.local = true;
  job.credit = 262144;
  job.setup = {"module load cuda\n", ""};
  return job;
}

TEST_CASE("a message with every kind of field survives its encoding") {
  const JobStart job = sample_job();
  const std::string payload = payload_of(job);
  const auto back = decode_payload(payload);
  REQUIRE(back.has_value());
  const auto& got = std::get<JobStart>(*back);
  CHECK(got.job_id == job.job_id);
  CHECK(got.argv == job.argv);
  CHECK(got.env == job.env);
  CHECK(got.devices == job.devices);
  CHECK(got.local);
  CHECK(got.credit == job.credit);
  CHECK(got.setup == job.setup);

  Hello hello;
  hello.hostname = "n";
  hello.clock_ns = 0x0123456789abcdefull;
  hello.interfaces = {{"eth0", "10.0.0.1", 24, true, false}, {"lo", "127.0.0.1", 8, true, true}};
  const std::string hello_payload = payload_of(hello);
  const auto hello_back = decode_payload(hello_payload);
  REQUIRE(hello_back.has_value());
  CHECK(std::get<Hello>(*hello_back).clock_ns == hello.clock_ns);
  REQUIRE(std::get<Hello>(*hello_back).interfaces.size() == 2);
  CHECK(std::get<Hello>(*hello_back).interfaces[1].loopback);
  CHECK(std::get<Hello>(*hello_back).workers == 0);
}

TEST_CASE("the worker count of a hello and the result of a job survive their encoding") {
  Hello hello;
  hello.workers = 3;
  const std::string hello_payload = payload_of(hello);
  CHECK(std::get<Hello>(decode_payload(hello_payload).value()).workers == 3);
  const Leave leave{137, "rank 2 on gpu02: killed by SIGKILL"};
  const std::string leave_payload = payload_of(leave);
  const Leave back = std::get<Leave>(decode_payload(leave_payload).value());
  CHECK(back.code == 137);
  CHECK(back.text == leave.text);
}

TEST_CASE("a question about workers and its answer survive their encoding") {
  const Query query{7, {3, 5}, {"sh", "-c", std::string("\0x", 2)}, 1500};
  const std::string question = payload_of(query);
  const Query asked = std::get<Query>(decode_payload(question).value());
  CHECK((asked.request == 7 && asked.timeout_ms == 1500));
  CHECK((asked.ranks == query.ranks && asked.argv == query.argv));
  const std::string cancel = payload_of(CancelQuery{7});
  CHECK(std::get<CancelQuery>(decode_payload(cancel).value()).request == 7);
  const std::string answer = payload_of(QueryAnswer{7, 3, "text\n", true, 137, "late"});
  const QueryAnswer answered = std::get<QueryAnswer>(decode_payload(answer).value());
  CHECK((answered.rank == 3 && answered.text == "text\n" && answered.last && answered.code == 137));
  CHECK(answered.trouble == "late");
}

TEST_CASE("the messages of a check survive their encoding") {
  NodeCheck check;
  check.job = sample_job();
  check.has_program = true;
  check.timeout_ms = 5000;
  const std::string question = payload_of(check);
  const auto asked = decode_payload(question);
  REQUIRE(asked.has_value());
  CHECK(std::get<NodeCheck>(*asked).job.argv == check.job.argv);
  CHECK(std::get<NodeCheck>(*asked).has_program);

  NodeChecked checked;
  checked.gpus = {{"H100", 80, 79, 1, "python 4711"}};
  checked.versions = {{"driver", "550.54"}, {"NCCL", "2.20.5"}};
  checked.memlock = ~0ull;
  checked.disks = {{"/data", 1000, 10, true, ""}, {"/tmp", 0, 0, false, "Stale file handle"}};
  checked.wall_ns = 1'700'000'000'000'000'000ull;
  const std::string answer = payload_of(checked);
  const auto back = decode_payload(answer);
  REQUIRE(back.has_value());
  const auto& got = std::get<NodeChecked>(*back);
  REQUIRE(got.gpus.size() == 1);
  CHECK(got.gpus[0].holders == "python 4711");
  CHECK(got.versions == checked.versions);
  CHECK(got.memlock == ~0ull);
  REQUIRE(got.disks.size() == 2);
  CHECK(got.disks[1].trouble == "Stale file handle");
  CHECK(got.wall_ns == checked.wall_ns);
  for (std::size_t size = 0; size < answer.size(); ++size)
    REQUIRE_FALSE(decode_payload(std::string_view(answer).substr(0, size)).has_value());
}

TEST_CASE("the bytes are those of docs/developers/protocol.md") {
  std::string frame;
  append_frame(Stop{0x01020304, 5, "ab", 2}, frame);
  const std::string expected(
      "\x10\x00\x00\x00"
      "\x45"
      "\x04\x03\x02\x01"
      "\x05\x00\x00\x00"
      "\x02\x00\x00\x00"
      "ab\x02",
      20);
  CHECK(frame == expected);
}

TEST_CASE("every truncation and every extra byte of a message is refused") {
  const std::string payload = payload_of(sample_job());
  for (std::size_t size = 0; size < payload.size(); ++size) {
    const auto result = decode_payload(std::string_view(payload).substr(0, size));
    REQUIRE_FALSE(result.has_value());
    REQUIRE(result.error().code == ErrorCode::kProtocol);
  }
  CHECK_FALSE(decode_payload(payload + "x").has_value());
}

TEST_CASE("unknown types, invalid booleans and false counts are refused by name") {
  CHECK(decode_payload(std::string(1, '\x7f')).error().text == "a message of unknown type 127");
  CHECK(decode_payload(std::string_view("\0", 1)).error().text == "a message of unknown type 0");
  std::string lying("\x42", 1);  // OpenStore whose list claims 65,536 addresses and holds none
  lying += std::string("\0\0\0\0\1\0\0\0\0\0\0\0\0", 13) + std::string("\0\0\1\0", 4);
  const auto result = decode_payload(lying);
  REQUIRE_FALSE(result.has_value());
  CHECK(result.error().text == "a malformed OpenStore message of 18 bytes");
}

TEST_CASE("output points into the payload and is not copied") {
  const std::string payload = payload_of(Output{1, 2, 2, 7, "hello"});
  const auto back = decode_payload(payload);
  REQUIRE(back.has_value());
  const auto& output = std::get<Output>(*back);
  CHECK(output.data == "hello");
  CHECK(output.data.data() == payload.data() + payload.size() - 5);
}

TEST_CASE("the messages of surviving workers survive their encoding") {
  Revoke revoke{3, 5000, "rank 1 failed", {0, 7}};
  const auto order = decode_payload(payload_of(revoke));
  REQUIRE(order.has_value());
  CHECK(std::get<Revoke>(*order).kill == revoke.kill);
  CHECK(std::get<Revoke>(*order).reason == "rank 1 failed");
  const auto answer = decode_payload(payload_of(AttemptRevoked{3, {{0, true, 12}, {2, false, 0}}}));
  REQUIRE(answer.has_value());
  const auto& survivors = std::get<AttemptRevoked>(*answer).survivors;
  REQUIRE(survivors.size() == 2);
  CHECK(survivors[0].holds_state);
  CHECK(survivors[0].step == 12);
  CHECK(survivors[1].local_rank == 2);
  CHECK_FALSE(survivors[1].holds_state);
  const auto trouble = decode_payload(payload_of(WorkerInTrouble{3, 2, "lost rank 1", {1}}));
  REQUIRE(trouble.has_value());
  CHECK(std::get<WorkerInTrouble>(*trouble).peers == std::vector<std::uint32_t>{1});
  Spawn spawn;
  spawn.from = 5;
  const auto start = decode_payload(payload_of(spawn));
  REQUIRE(start.has_value());
  CHECK(std::get<Spawn>(*start).from == 5);
}

TEST_CASE("texts and lists of an agent are cut where they are sent, and refused where they are too long") {
  const std::string long_text(kMaxFrame, 'x');
  const auto decoded = [](const Message& message) { return decode_payload(payload_of(message)).value(); };
  CHECK(std::get<Refused>(decoded(Refused{1, 0, long_text})).text.size() == kMaxAgentText);
  CHECK(std::get<StoreOpened>(decoded(StoreOpened{0, 1, long_text})).token.size() == kMaxAgentText);
  CHECK(std::get<WorkerEvidence>(decoded(WorkerEvidence{0, 1, {}, {}, long_text})).error_json.size() ==
        kMaxAgentEvidence);
  CHECK(std::get<WorkerCollectives>(decoded(WorkerCollectives{0, 1, long_text})).log.size() == kMaxAgentDump);
  Hello hello;
  hello.interfaces.resize(kMaxInterfaces + 1);
  CHECK(std::get<Hello>(decoded(hello)).interfaces.size() == kMaxInterfaces);
  const std::string text = std::string(kMaxFrame / 2, 'x');
  CHECK(std::get<Stop>(decoded(Stop{0, 0, text})).reason.size() == text.size());  // the master's own

  // The same frame with one byte more than allowed.
  std::string payload = payload_of(Notice{std::string(kMaxAgentText, 'x'), false});
  REQUIRE(decode_payload(payload).has_value());
  payload.insert(payload.size() - 1, "x");
  ++payload[1];
  CHECK(decode_payload(payload).error().text.find("a malformed Notice") == 0);
}

TEST_CASE("the size of a frame is known without its bytes") {
  const auto same = [](const Message& message) {
    std::string frame;
    append_frame(message, frame);
    return frame.size() == frame_size(message);
  };
  CHECK(same(sample_job()));
  CHECK(same(Hello{.hostname = "n", .interfaces = {{"eth0", "10.0.0.1", 24, true, false}}}));
  CHECK(same(WorkerSteps{1, {2}, {3}, {4}, {"train"}, {5}, {6}, {7, 8}}));
  CHECK(same(Output{0, 1, 2, 3, "text"}));
}

TEST_CASE("every message has a name") {
  CHECK(message_name(Hello{}) == "Hello");
  CHECK(message_name(StdinTaken{}) == "StdinTaken");
  CHECK(message_name(JobStart{}) == "JobStart");
  CHECK(message_name(Credit{}) == "Credit");
  CHECK(message_name(Stdin{}) == "Stdin");
  CHECK(message_name(NodeChecked{}) == "NodeChecked");
  CHECK(message_name(NodeCheck{}) == "NodeCheck");
  CHECK(message_name(WorkersGreeted{}) == "WorkersGreeted");
  CHECK(message_name(AttemptRevoked{}) == "AttemptRevoked");
  CHECK(message_name(Revoke{}) == "Revoke");
  CHECK(message_name(Signal{}) == "Signal");
}

}  // namespace
}  // namespace ddp::rendezvous
