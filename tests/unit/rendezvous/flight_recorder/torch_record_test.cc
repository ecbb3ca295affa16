#include "rendezvous/flight_recorder/torch_record.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/codec.h"
#include "tests/support/catch.h"

using namespace ddp::rendezvous;

namespace {

// Answers of torch 2.15.0 (gloo), whose records are shortened to one operation.
constexpr std::string_view kRecorded =
    R"({"comm_lib_version":"","entries":[{"collective_seq_id":6,"input_dtypes":["Float"],"input_sizes":[[8]],)"
    R"("is_p2p":false,"op_id":6,"output_dtypes":["Float"],"output_sizes":[[8]],"p2p_seq_id":0,"pg_id":0,)"
    R"("process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":5,"retired":false,)"
    R"("state":"scheduled","thread_id":"139682","thread_name":"python","time_created_ns":1795987992903869758,)"
    R"("time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000}],)"
    R"("nccl_comm_state":{},"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},"pg_status":{},)"
    R"("version":"2.10"})";
constexpr std::string_view kInCollective =
    "Current thread 0x00007f9271afd6c0 (most recent call first):\n"
    "  <no Python frame>\n\n"
    "Thread 0x00007f9327c78b80 (most recent call first):\n"
    "  File \"/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py\", line 4181 in "
    "all_reduce\n"
    "  File \"/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py\", line 83 in wrapper\n"
    "  File \"/home/me/train.py\", line 62 in step\n"
    "  File \"/home/me/train.py\", line 90 in <module>\n";

struct Call {
  std::uint64_t sequence = 1;
  std::string kind = "all_reduce";
  std::string sizes = "[[8]]";
  bool done = false;
  std::string type = "Float";
  std::string group = R"(["0","default_pg"])";
  std::string outputs = "";  ///< as `sizes` if empty
};

/// As of torch 2.15.0, which leaves out the operations where there are none.
std::string record_of(const std::vector<Call>& calls) {
  if (calls.empty()) return R"({"comm_lib_version":"","nccl_comm_state":{},"pg_status":{},"version":"2.10"})";
  std::string text;
  for (const Call& call : calls) {
    text += std::string(text.empty() ? "" : ",") + R"({"collective_seq_id":)" +
            std::to_string(call.sequence) + R"(,"is_p2p":false,"process_group":)" + call.group +
            R"(,"profiling_name":"gloo:)" + call.kind + R"(","input_sizes":)" + call.sizes +
            R"(,"output_sizes":)" + (call.outputs.empty() ? call.sizes : call.outputs) +
            R"(,"input_dtypes":[")" + call.type + R"("],"output_dtypes":[")" + call.type +
            R"("],"retired":)" + (call.done ? "true" : "false") +
            R"(,"state":"scheduled","time_created_ns":1000000000})";
  }
  return R"({"entries":[)" + text + "]}";
}

constexpr std::string_view kTwoGroups =
    R"({"0":{"description":"default_pg","ranks":[0,1,2]},"1":{"description":"mesh_dp","ranks":[0,2]}})";

/// What rank `rank` of three sends to the master, 9 s after its operations started.
FlightRecorderDump dump_of(
    int rank, const std::vector<Call>& calls, const std::string& stacks = "",
    std::string_view groups = R"({"0":{"description":"default_pg","ranks":[0,1,2]}})") {
  FlightRecorderDump identity;
  identity.rank = rank;
  identity.world_size = 3;
  identity.taken = 10'000'000'000;
  const auto dump = read_torch_answers({record_of(calls), std::string(groups), stacks}, identity, 1, 64);
  REQUIRE(dump.has_value());
  const auto read = parse_dump(dump_text(*dump));  // as it arrives
  REQUIRE(read.has_value());
  return *read;
}

std::string stacks_at(const std::string& line, const std::string& library = "") {
  return "Thread 0x1 (most recent call first):\n" + library + "  File \"/home/me/train.py\", line " + line +
         " in <module>\n";
}

}  // namespace

TEST_CASE(
    "the last operation of a rank that gave up is the one in which it waited, which PyTorch calls retired") {
  FlightRecorderDump identity;
  identity.world_size = 3;
  const std::string record = record_of({{5, "all_reduce", "[[8]]", true}, {6, "all_reduce", "[[8]]", true}});
  TorchAnswers answers{record, "", "", true};
  const auto dump = read_torch_answers(answers, identity, 1, 64);
  REQUIRE(dump.has_value());
  REQUIRE(dump->groups.size() == 1);
  REQUIRE(dump->groups[0].entries.size() == 2);
  CHECK(dump->groups[0].entries[0].finished != 0);
  CHECK(dump->groups[0].entries[1].finished == 0);
  CHECK(dump->place.empty());
}

TEST_CASE("PyTorch's record becomes a dump") {
  FlightRecorderDump identity;
  identity.world_size = 4;
  const auto dump =
      read_torch_answers({std::string(kRecorded), "", std::string(kInCollective)}, identity, 1, 64);
  REQUIRE(dump.has_value());
  REQUIRE(dump->groups.size() == 1);
  CHECK(dump->groups[0].name == "world");
  CHECK(dump->groups[0].ranks == 4);
  CHECK(dump->groups[0].entries ==
        std::vector<RecordedCollective>{{6, "all_reduce", 32, "float", 1'795'987'992'903'869'758, 0}});
  CHECK(dump->place == "at train.py:62 in step");
}

TEST_CASE("the rank that the others wait for is named, with its line") {
  const std::vector<Call> waits = {{.sequence = 5, .done = true}, {.sequence = 6}};
  const DesyncVerdict verdict = analyze_desync(
      {dump_of(0, waits), dump_of(1, waits), dump_of(2, {{.sequence = 5, .done = true}}, stacks_at("31"))});
  CHECK(verdict.text ==
        "rank 2 has not started all_reduce 6 (32 B) that ranks 0-1 wait in for 9.0 s; rank 2 is at "
        "train.py:31");
  CHECK(verdict.waited_for);
}

TEST_CASE("a rank that has called nothing yet is behind, wherever it is") {
  const std::vector<Call> waits = {{}};
  CHECK(analyze_desync({dump_of(0, waits), dump_of(1, waits), dump_of(2, {}, stacks_at("18"))}).text ==
        "rank 2 has not started all_reduce 1 (32 B) that ranks 0-1 wait in for 9.0 s; rank 2 is at "
        "train.py:18");
  // It is in no process group yet, and the others wait in one that is not the world.
  const std::vector<Call> in_group = {{.group = R"(["1","mesh_dp"])"}};
  CHECK(analyze_desync(
            {dump_of(0, in_group, "", kTwoGroups), dump_of(1, waits), dump_of(2, {}, stacks_at("16"), "{}")})
            .text.starts_with("rank 2 has not started all_reduce 1 (32 B) "));
}

TEST_CASE("a rank that does not come to init_process_group is named") {
  const std::string joins = stacks_at(
      "17",
      "  File \"/env/site-packages/torch/distributed/rendezvous.py\", line 215 in _create_c10d_store\n"
      "  File \"/env/site-packages/torch/distributed/distributed_c10d.py\", line 2714 in "
      "init_process_group\n");
  const auto waits = [&](int rank) { return dump_of(rank, {}, joins, "{}"); };
  const DesyncVerdict late = analyze_desync({waits(0), waits(1), dump_of(2, {}, stacks_at("16"), "{}")});
  CHECK(late.text ==
        "rank 2 has not started init_process_group that ranks 0-1 wait in; rank 2 is at train.py:16");
  CHECK(late.waited_for);
  CHECK(late.named == std::set<int>{2});
  // It has not imported torch.distributed.
  CHECK(analyze_desync({waits(0), waits(1)}).text ==
        "rank 2 left no record; ranks 0-1 wait in init_process_group; ranks 0-1 are at train.py:17");
  // It was there before the others.
  CHECK(analyze_desync({waits(0), waits(1), dump_of(2, {}, stacks_at("20"))}).named.empty());
}

TEST_CASE("another operation, size or type is named") {
  const Call right{.sequence = 3};
  const auto against = [&](const Call& wrong) {
    return analyze_desync({dump_of(0, {right}), dump_of(1, {right}), dump_of(2, {wrong}, stacks_at("46"))})
        .text;
  };
  CHECK(against({.sequence = 3, .kind = "broadcast"}) ==
        "rank 2 called broadcast 3 (32 B) where ranks 0-1 called all_reduce 3 (32 B); rank 2 is at "
        "train.py:46");
  CHECK(against({.sequence = 3, .sizes = "[[4, 4]]"}) ==
        "rank 2 called all_reduce 3 (64 B) where ranks 0-1 called all_reduce 3 (32 B); rank 2 is at "
        "train.py:46");
  CHECK(against({.sequence = 3, .type = "Int"}) ==
        "rank 2 called all_reduce 3 (32 B) of int where ranks 0-1 called all_reduce 3 (32 B) of float; "
        "rank 2 is at train.py:46");
}

TEST_CASE("sizes that may differ are no mistake") {
  const auto same = [](const Call& one, const Call& other) {
    return analyze_desync({dump_of(0, {one}), dump_of(1, {one}), dump_of(2, {other})}).text;
  };
  const std::string wait = " for 9.0 s: the network between them fails, or one rank is stuck in it";
  CHECK(same({.kind = "gather", .sizes = "[[2]]"}, {.kind = "gather", .sizes = "[[6]]"}) ==
        "all ranks wait in gather 1" + wait);
  // Uneven inputs, but all outputs are equal.
  CHECK(same({.kind = "all_gather", .sizes = "[[2]]", .outputs = "[[2],[2],[4]]"},
             {.kind = "all_gather", .sizes = "[[4]]", .outputs = "[[2],[2],[4]]"}) ==
        "all ranks wait in all_gather 1 (32 B)" + wait);
  CHECK(same({.sizes = "[[2]]", .done = true}, {.sizes = "[[4]]", .done = true}).empty());
}

TEST_CASE("a member that has called nothing in a group is known from the hook") {
  const Call world_done{.sequence = 5, .done = true};
  const Call in_group{.group = R"(["1","mesh_dp"])"};
  CHECK(analyze_desync({dump_of(0, {world_done, in_group}, "", kTwoGroups),
                        dump_of(1, {world_done, {.sequence = 6}}),
                        dump_of(2, {world_done}, stacks_at("58"), kTwoGroups)})
            .text ==
        "rank 2 has not started all_reduce 1 (32 B) of group 1 (mesh_dp) that rank 0 waits in for 9.0 s; "
        "rank 2 is at train.py:58");
}

TEST_CASE("ranks that ended or were stopped are named") {
  const std::vector<Call> waits = {{.sequence = 6}};
  CHECK(analyze_desync({dump_of(0, waits), dump_of(1, waits)}, {2}).text ==
        "rank 2 has ended; ranks 0-1 wait in all_reduce 6 (32 B) for 9.0 s");
  FlightRecorderDump stopped;
  stopped.rank = 2;
  stopped.world_size = 3;
  stopped.place = "stopped by a signal";
  CHECK(analyze_desync({dump_of(0, waits), dump_of(1, waits), *parse_dump(dump_text(stopped))}).text ==
        "rank 2 left no record; ranks 0-1 wait in all_reduce 6 (32 B) for 9.0 s; rank 2 is stopped by a "
        "signal");
}

TEST_CASE("the place says what a library does for the script") {
  const auto place = [](const std::string& file, const std::string& function) {
    return script_place(stacks_at("7",
                                  "  File \"/usr/lib/python3.11/selectors.py\", line 415 in select\n"
                                  "  File \"" +
                                      file + "\", line 1 in " + function + "\n"));
  };
  CHECK(place("/env/lib/python3.11/site-packages/torch/utils/data/dataloader.py", "_try_get_data") ==
        "in its data loader, at train.py:7");
  CHECK(place("/env/lib/python3.11/site-packages/torch/serialization.py", "save") ==
        "writing a checkpoint, at train.py:7");
  CHECK(place("/env/lib/python3.11/site-packages/torch/distributed/checkpoint/state_dict_loader.py",
              "load") == "reading a checkpoint, at train.py:7");
  CHECK(place("/usr/lib/python3.11/threading.py", "wait") == "waiting for a lock, at train.py:7");
  CHECK(place("/usr/lib/python3.11/json/decoder.py", "decode") == "at train.py:7");
  CHECK(script_place("Thread 0x1 (most recent call first):\n  <no Python frame>\n").empty());
  // A program that is a package itself.
  CHECK(script_place("Thread 0x1 (most recent call first):\n"
                     "  File \"/usr/lib/python3/dist-packages/tool/main.py\", line 3 in run\n") ==
        "at main.py:3 in run");
}

TEST_CASE("a rank whose GIL is held has a record, but no stacks") {
  TorchAnswers answers{record_of({{.sequence = 5, .done = true}}), "", ""};
  FlightRecorderDump identity;
  identity.rank = 2;
  identity.world_size = 3;
  const auto text = [&] {
    return analyze_desync({dump_of(0, {{.sequence = 6}}), dump_of(1, {{.sequence = 6}}),
                           *read_torch_answers(answers, identity, 1, 64)})
        .text;
  };
  // The server or the machine may have been slow.
  CHECK(text().ends_with(" wait in for 9.0 s"));
  answers.lacks_gil = true;
  CHECK(text().ends_with("; rank 2 is probably in a native call that holds the GIL"));
}

/// What is known of a rank of four whose PyTorch has no recorder. `frames`: the innermost one first.
FlightRecorderDump by_stacks(int rank, const std::vector<std::string>& frames, int world = 4) {
  TorchAnswers answers;
  answers.stacks = "Thread 0x1 (most recent call first):\n";
  for (const std::string& frame : frames)
    answers.stacks += "  File \"" + frame + "\n";
  FlightRecorderDump identity;
  identity.rank = rank;
  identity.world_size = world;
  auto dump = read_torch_answers(answers, identity, 1, 64);
  REQUIRE(dump);
  return *parse_dump(dump_text(*dump));  // as the master gets it
}

TEST_CASE("without a recorder the stacks tell which rank the others wait for") {
  const std::string torch = "/env/lib/python3.11/site-packages/torch/";
  const std::string c10d = torch + "distributed/distributed_c10d.py\", line 9 in ";
  const std::vector<std::string> sums{c10d + "all_reduce",
                                      torch + "distributed/c10d_logger.py\", line 7 in wrapper",
                                      "/home/me/train.py\", line 8 in step"};
  const auto verdict = [&](const std::vector<std::string>& of_2) {
    return analyze_desync({by_stacks(0, sums), by_stacks(1, sums), by_stacks(2, of_2), by_stacks(3, sums)});
  };
  const DesyncVerdict sleeps = verdict({"/home/me/train.py\", line 7 in load"});
  CHECK(sleeps.text ==
        "rank 2 has not started all_reduce that ranks 0-1,3 wait in; rank 2 is at train.py:7 in load");
  CHECK(sleeps.named == std::set<int>{2});
  CHECK(sleeps.waited_for);
  CHECK(sleeps.by_stacks);
  // The outermost function is the one that the script has called.
  const DesyncVerdict other =
      verdict({c10d + "all_gather", c10d + "all_gather_object", "/home/me/train.py\", line 9 in step"});
  CHECK(
      other.text ==
      "rank 2 called all_gather_object where ranks 0-1,3 called all_reduce; rank 2 is at train.py:9 in step");
  CHECK(other.differs);
  CHECK(verdict({torch + "autograd/__init__.py\", line 3 in backward",
                 torch + "_tensor.py\", line 4 in backward", "/home/me/train.py\", line 5"})
            .text == "rank 2 called backward where ranks 0-1,3 called all_reduce; rank 2 is at train.py:5");
  // It may have skipped one, and wait in the next one.
  const DesyncVerdict same = verdict(sums);
  CHECK(same.text.empty());
  CHECK(same.named.empty());
  CHECK(analyze_desync({by_stacks(0, sums), by_stacks(1, sums), by_stacks(3, sums)}, {2}).text ==
        "rank 2 has ended; ranks 0-1,3 wait in all_reduce; ranks 0-1,3 are at train.py:8 in step");
}

TEST_CASE("where other ranks have a record, stacks only tell where a rank is") {
  const DesyncVerdict verdict = analyze_desync({dump_of(0, {{.sequence = 6}}), dump_of(1, {{.sequence = 6}}),
                                                by_stacks(2, {"/home/me/train.py\", line 7 in load"}, 3)});
  CHECK_FALSE(verdict.by_stacks);
  CHECK(verdict.text.starts_with("rank 2 left no record; ranks 0-1 wait in all_reduce 6 "));
  CHECK(verdict.text.ends_with("; rank 2 is at train.py:7 in load"));
}

TEST_CASE("answers that are no record give none") {
  FlightRecorderDump identity;
  identity.world_size = 4;
  for (const char* record : {"", "{", "[]", "7", R"({"entries":7})", "\xff\xfe", "<html>"})
    CHECK_FALSE(read_torch_answers({record, "", ""}, identity, 1, 64).has_value());
  // Members of any type and size, and numbers beyond all limits.
  const std::string hostile =
      R"({"entries":[7,null,{},{"collective_seq_id":-1},{"collective_seq_id":1e99},{"collective_seq_id":1,)"
      R"("process_group":"x"},{"collective_seq_id":2,"process_group":[]},{"collective_seq_id":3,)"
      R"("process_group":["0",7],"profiling_name":[],"input_sizes":[[18446744073709551615,18446744073709551615]],)"
      R"("input_dtypes":[1],"time_created_ns":18446744073709551615}]})";
  const auto dump =
      read_torch_answers({hostile, R"({"0":7,"1":{"ranks":[-1]},"2":{"ranks":[0,0]}})", ""}, identity, 1, 64);
  REQUIRE(dump.has_value());
  REQUIRE(dump->groups.size() == 1);
  CHECK(dump->groups[0].entries.size() == 1);
  CHECK(parse_dump(dump_text(*dump)).has_value());
}

TEST_CASE("a dump fits into a message whatever the server answers") {
  std::vector<Call> calls;
  for (std::uint64_t i = 0; i < 3'000; ++i)
    calls.push_back({.sequence = 1 + i / 100,
                     .kind = std::string(500, '\x01'),
                     .group = R"([")" + std::to_string(i % 100) + std::string(500, 'g') + R"(",")" +
                              std::string(500, 'd') + R"("])"});
  std::string ranks;
  for (int i = 0; i < 2'000; ++i)
    ranks += (i == 0 ? "" : ",") + std::to_string(998'000 + i);
  std::string groups;
  for (int i = 0; i < 100; ++i)
    groups += std::string(i == 0 ? "" : ",") + "\"m" + std::to_string(i) + R"(":{"ranks":[)" + ranks + "]}";
  FlightRecorderDump identity;
  identity.rank = 999'000;
  identity.world_size = 1'000'000;
  const auto dump =
      read_torch_answers({record_of(calls), "{" + groups + "}", std::string(kInCollective)}, identity, 1, 64);
  REQUIRE(dump.has_value());
  CHECK(dump_text(*dump).size() <= kMaxAgentDump);
}

TEST_CASE("an HTTP answer must be whole and good") {
  const std::string head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
  CHECK(http_body(head + "pong") == "pong");
  CHECK(http_body(head + "pong and more") == "pong");
  CHECK_FALSE(http_body(head + "pon"));
  CHECK_FALSE(http_body("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"));
  CHECK_FALSE(http_body("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\npong"));
  CHECK_FALSE(http_body("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\npong"));
  CHECK_FALSE(http_body("HTTP/1.1 200 OK\r\n\r\npong"));
  CHECK_FALSE(http_body("garbage"));
  CHECK_FALSE(http_body(""));
}
