#include "apps/train/checkpoint/checkpoint.h"

#include "tests/support/catch.h"

using namespace ddp::train;

namespace {

CheckpointState example() {
  CheckpointState state;
  state.model = "convnet";
  state.dtype = "float32";
  state.optimizer = "sgd";
  state.world_size = 4;
  state.batch_size = 10;
  state.accumulate = 2;
  state.seed = -3;
  state.samples = 1'000;
  state.training_images = 3'000'000'000;
  state.training_labels = 7;
  state.position = {12, 1, 100, 5, 1.0 / 3};
  state.optimizer_steps = 11;
  state.running = {0.1, 1.0 / 3, -2e-300};
  state.model_crc32 = 0xfedcba98;
  state.optimizer_crc32 = 7;
  return state;
}

}  // namespace

TEST_CASE("a checkpoint's state survives its encoding as text bit for bit") {
  const auto read = parse_checkpoint_state("x", to_json(example()));
  REQUIRE(read.has_value());
  CHECK(to_json(*read) == to_json(example()));
  CHECK(read->running == example().running);
  CHECK(read->position.segment_begin == 100);
  CHECK(read->position.warmed_up == 1.0 / 3);
  CHECK(read->training_images == 3'000'000'000);
  CHECK(read->seed == -3);
  CHECK(read->used() == 500);
  CHECK(read->model_crc32 == 0xfedcba98);
}

TEST_CASE("a state of a training whose optimizer has made no step is valid") {
  CheckpointState state = example();
  state.position = {1, 0, 0, 1, 0};
  state.optimizer_steps = 0;
  CHECK(parse_checkpoint_state("x", to_json(state)).has_value());
}

TEST_CASE("text that is no state is refused") {
  CHECK(parse_checkpoint_state("x", "").error().text == "x: is not a JSON object; is it truncated?");
  const std::string hint = " and this train reads format 2; use the version of train that wrote it";
  CHECK(parse_checkpoint_state("x", "{}").error().text == "x: is of format none" + hint);
  CHECK(parse_checkpoint_state("x", "{\"format\":1}").error().text == "x: is of format 1" + hint);
  // A text without a CRC-32 of its own may be damaged; only another version's is refused for all ranks.
  CHECK(parse_checkpoint_state("x", "{\"format\":1}").error().code != ddp::ErrorCode::kRefused);
  CHECK(parse_checkpoint_state("x", "{\"format\":2,\"step\":-1}").error().text ==
        "x: \"step\" is missing or has the wrong type");
}

TEST_CASE("numbers that no training can have written are refused") {
  const auto refusal = [](const std::string& from, const std::string& to) {
    std::string text = to_json(example());
    text.replace(text.find(from), from.size(), to);
    const auto read = parse_checkpoint_state("x", text);
    return read ? "" : read.error().text;
  };
  const std::string never = "x: the values are invalid: ";
  CHECK(refusal("\"segment_begin\": 100", "\"segment_begin\": 1000") ==
        never + "segment_begin 1000 of 1000 samples");
  CHECK(refusal("\"segment_step\": 5", "\"segment_step\": 9223372036854775808") ==
        never + "segment_step 9223372036854775808 where a segment has 12");
  CHECK(refusal("\"segment_step\": 5", "\"segment_step\": 12") ==
        "x: is damaged: its CRC-32 is 1a30aad9 and 096f31be was written");
  CHECK(refusal("\"segment_step\": 5", "\"segment_step\": 13") ==
        never + "segment_step 13 where a segment has 12");
  CHECK(refusal("\"epoch\": 1", "\"epoch\": -1") == never + "epoch -1");
  CHECK(refusal("\"epoch\": 1", "\"epoch\": 1000000000000000000") == never + "epoch 1000000000000000000");
  CHECK(refusal("\"epoch\": 1", "\"epoch\": 18446744073709551615") ==
        "x: \"epoch\" is missing or has the wrong type");
  CHECK(refusal("\"world_size\": 4", "\"world_size\": 4294967299") ==
        "x: \"world_size\" is missing or has the wrong type");
  for (const std::string member : {"\"world_size\": 4", "\"batch_size\": 10", "\"accumulate\": 2"}) {
    const std::string name = member.substr(0, member.find(' ') + 1);
    CHECK(refusal(member, name + "1048577") ==
          never + "world_size, batch_size or accumulate of more than 1048576");
    CHECK(refusal(member, name + "1048576").find("of more than") == std::string::npos);
    CHECK(refusal(member, name + "0") == "x: world_size, batch_size and accumulate must be at least 1");
  }
  CHECK(refusal("\"warmed_up\": 0.3333333333333333", "\"warmed_up\": 2") ==
        never + "warmed_up outside of 0 to 1");
  CHECK(refusal("\"training_labels_crc32\": 7", "\"training_labels_crc32\": 4294967296") ==
        "x: \"training_labels_crc32\" is missing or has the wrong type");
  CHECK(refusal("\"samples\": 1000", "\"samples\": 0") == never + "samples 0");
  CHECK(refusal("\"epoch\": 1,\n \"segment_begin\": 100", "\"epoch\": 0,\n \"segment_begin\": 0") ==
        never + "segment_step 5 in step 12 of the first segment");
  CHECK(refusal("\"model_crc32\": 4275878552", "\"model_crc32\": 4294967296") ==
        "x: \"model_crc32\" is missing or has the wrong type");
  CHECK(refusal("\"optimizer_steps\": 11", "\"optimizer_steps\": 13") ==
        never + "optimizer_steps 13 in step 12");
  CHECK(refusal("\"step\": 12", "\"step\": 18446744073709551615") == never + "step 18446744073709551615");
}

TEST_CASE("an unchanged division continues in its segment, another one starts a new segment") {
  const CheckpointState state = example();
  CHECK(go_on(state, 4, 10, 2).segment_begin == 100);
  CHECK(go_on(state, 4, 10, 2).segment_step == 5);
  for (const auto position : {go_on(state, 3, 10, 2), go_on(state, 4, 11, 2), go_on(state, 4, 10, 1)}) {
    CHECK(position.segment_begin == 500);
    CHECK(position.segment_step == 0);
    CHECK(position.step == 12);
    CHECK(position.epoch == 1);
  }
  CheckpointState over = example();
  over.samples = 490;  // the last step was padded
  CHECK(go_on(over, 3, 10, 2).epoch == 2);
  CHECK(go_on(over, 3, 10, 2).segment_begin == 0);
  CHECK(go_on(over, 4, 10, 2).epoch == 1);  // the epoch has no samples left; it ends with its test
}

TEST_CASE("names of checkpoints") {
  CHECK(checkpoint_name(1234) == "step-00001234");
  CHECK(checkpoint_step("step-00001234") == 1234u);
  CHECK(checkpoint_step("step-1234567890") == 1234567890u);
  for (const char* other :
       {"step-1234", "step-+0001234", "step-00001234.old", "step-99999999999999999999", "x"})
    CHECK_FALSE(checkpoint_step(other).has_value());
  CHECK(list_checkpoints("/nonexistent")->empty());
  CHECK(list_checkpoints("/dev/null").error().text == "read /dev/null: Not a directory");
  CHECK(find_checkpoint("/nonexistent").error().text == "/nonexistent: No such file or directory");
}

TEST_CASE("a segment has at most the steps of the training and those of its samples") {
  const auto refusal = [](CheckpointState state) {
    const auto read = parse_checkpoint_state("x", to_json(state));
    return read ? "" : read.error().text;
  };
  const std::string never = "x: the values are invalid: ";
  CheckpointState early = example();
  early.position.step = early.position.segment_step = 5;
  early.optimizer_steps = 5;
  CHECK(refusal(early) == "");
  early.position.segment_step = 6;
  CHECK(refusal(early) == never + "segment_step 6 where a segment has 12");

  CheckpointState even = example();  // 80 samples a step
  even.samples = 100 + 8 * 80;
  even.position.segment_step = 8;
  CHECK(refusal(even) == "");
  even.position.segment_step = 9;
  CHECK(refusal(even) == never + "segment_step 9 where a segment has 8");
  ++even.samples;  // one more step, which is padded
  CHECK(refusal(even) == "");
}

TEST_CASE("an epoch without a sample left is complete when the division changes, one with a sample is not") {
  CheckpointState state = example();
  state.samples = state.used();
  CHECK(go_on(state, 3, 10, 2).epoch == 2);
  CHECK(go_on(state, 3, 10, 2).segment_begin == 0);
  ++state.samples;
  CHECK(go_on(state, 3, 10, 2).epoch == 1);
  CHECK(go_on(state, 3, 10, 2).segment_begin == 500);
}
