#include "apps/train/checkpoint/checkpoint.h"

#include <sys/syscall.h>
#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "apps/train/model/model.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp::train {
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
  CHECK(position_after(state, 4, {10, 2}).segment_begin == 100);
  CHECK(position_after(state, 4, {10, 2}).segment_step == 5);
  for (const auto position : {position_after(state, 3, {10, 2}), position_after(state, 4, {11, 2}),
                              position_after(state, 4, {10, 1})}) {
    CHECK(position.segment_begin == 500);
    CHECK(position.segment_step == 0);
    CHECK(position.step == 12);
    CHECK(position.epoch == 1);
  }
  CheckpointState over = example();
  over.samples = 490;  // the last step was padded
  CHECK(position_after(over, 3, {10, 2}).epoch == 2);
  CHECK(position_after(over, 3, {10, 2}).segment_begin == 0);
  CHECK(position_after(over, 4, {10, 2}).epoch == 1);  // the epoch has no samples left; it ends with its test
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
  CHECK(position_after(state, 3, {10, 2}).epoch == 2);
  CHECK(position_after(state, 3, {10, 2}).segment_begin == 0);
  ++state.samples;
  CHECK(position_after(state, 3, {10, 2}).epoch == 1);
  CHECK(position_after(state, 3, {10, 2}).segment_begin == 500);
}

namespace fs = std::filesystem;

struct CheckpointFolder : test::TemporaryDirectory {
  bool holds(const std::string& name) const { return fs::exists(path / name); }
  /// Makes a directory of this name; `whole`: with a state.json.
  void make(const std::string& name, bool whole) const {
    fs::create_directory(path / name);
    if (whole) write(name + "/state.json", "{}");
  }
};

CheckpointContent<float> content_of(const Model<float>& model, std::uint64_t step) {
  CheckpointContent<float> content;
  content.state.model = "mlp";
  content.state.position.step = step;
  content.parameters = AlignedBuffer<float>(model.parameter_count());
  content.optimizer.push_back({"velocity", AlignedBuffer<float>(model.parameter_count())});
  return content;
}

/// A small model, and the writer of its checkpoints.
struct Training {
  explicit Training(const CheckpointFolder& folder, int keep = 3)
      : writer({folder.path.string(), keep}, model,
               [this](const std::string& line) { said.push_back(line); }) {}
  void write(std::uint64_t step) { writer.write(content_of(model, step)); }

  ThreadPool threads{1};
  const Mlp<float> model{2, 1, 1, threads};
  std::vector<std::string> said;  ///< read after a wait for the writer
  CheckpointWriter<float> writer;
};

/// While it exists, no file system can exchange names.
struct NoExchange {
  NoExchange() { refused = 0; }
  ~NoExchange() { refused.reset(); }
  static inline std::optional<int> refused;  ///< number of calls
};

/// Replaces the system's function in this program.
extern "C" int renameat2(int from_directory, const char* from, int to_directory, const char* to,
                         unsigned flags) noexcept {
  if (!NoExchange::refused)
    return static_cast<int>(::syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
  ++*NoExchange::refused;
  errno = EINVAL;
  return -1;
}

TEST_CASE("the newest checkpoints up to the one just written stay, and other files are untouched") {
  const CheckpointFolder folder;
  folder.make("step-00000003", true);
  folder.make("step-00000004", false);  // not a checkpoint of a training
  folder.make("step-00000005", true);
  folder.make("step-00000900", true);  // another training's
  folder.make("step-00000901", true);
  Training training(folder, 2);
  for (const std::uint64_t step : {6u, 7u}) {
    training.write(step);
    CHECK(training.writer.wait().has_value());
  }
  CHECK(*list_checkpoints(folder.path.string()) ==
        std::vector<std::string>{"step-00000006", "step-00000007", "step-00000900", "step-00000901"});
  CHECK(folder.holds("step-00000004"));
  CHECK(*find_checkpoint(folder.path.string()) == folder.path.string() + "/step-00000901");
  folder.make("step-00000999", false);
  CHECK(*find_checkpoint(folder.path.string()) == folder.path.string() + "/step-00000901");
}

TEST_CASE("a checkpoint is complete when the wait for it returns, and is read again") {
  const CheckpointFolder folder;
  Training training(folder);
  CheckpointContent<float> content = content_of(training.model, 1);
  CheckpointState& state = content.state;
  state.dtype = "float32";
  state.optimizer = "sgd";
  state.world_size = state.batch_size = state.accumulate = 1;
  state.samples = 10;
  state.position.segment_step = 1;
  training.writer.write(std::move(content));
  REQUIRE(training.writer.wait().has_value());
  const std::string path = folder.path.string() + "/step-00000001";
  const auto read = read_checkpoint_state(path);
  REQUIRE(read.has_value());
  const auto any = [](const Safetensors&) { return ddp::Result<>(); };
  CHECK(read_checkpoint(path, *read, any, any).has_value());
}

TEST_CASE("an optimizer's file must have exactly the optimizer's tensors") {
  const CheckpointFolder folder;
  Training training(folder);
  training.write(1);
  REQUIRE(training.writer.wait().has_value());
  const auto read = Safetensors::read(folder.path.string() + "/step-00000001/optimizer.safetensors",
                                      [](const Safetensors&) { return ddp::Result<>(); });
  REQUIRE(read.has_value());
  const Safetensors& file = *read;
  const std::size_t size = training.model.parameter_count();
  CHECK(check_optimizer(file, size, {"velocity"}).has_value());
  CHECK(check_optimizer(file, size, {"moment"}).error().text == file.path() + ": has no tensor moment");
  CHECK(check_optimizer(file, size + 1, {"velocity"}).error().text ==
        file.path() + ": tensor velocity has " + std::to_string(size) + " numbers for " +
            std::to_string(size + 1) + " parameters");
  CHECK(check_optimizer(file, size, {}).error().text ==
        file.path() + ": has a tensor velocity, which this optimizer does not have");
}

TEST_CASE("checkpoints that follow each other at once are all written") {
  const CheckpointFolder folder;
  Training training(folder, 9);
  for (std::uint64_t step = 1; step <= 5; ++step)
    training.write(step);
  REQUIRE(training.writer.wait().has_value());
  CHECK(list_checkpoints(folder.path.string())->size() == 5);
}

TEST_CASE("consecutive failures are reported once, and so is the next success") {
  const CheckpointFolder folder;
  Training training(folder);
  const auto write = [&training](std::uint64_t step, float weight, float velocity) {
    CheckpointContent<float> content = content_of(training.model, step);
    content.parameters.span()[0] = weight;
    content.optimizer[0].values.span()[0] = velocity;
    training.writer.write(std::move(content));
    return training.writer.wait().has_value();
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string reason =
      " not written: its weights or its optimizer's state are not finite; training continues, ";
  CHECK_FALSE(write(1, nan, 0));
  CHECK_FALSE(write(2, 0, nan));
  CHECK(fs::is_empty(folder.path.string()));
  CHECK(write(3, 0, 0));
  CHECK(write(4, 0, 0));
  CHECK_FALSE(write(5, nan, 0));
  CHECK(training.said == std::vector<std::string>{
                             "checkpoint step-00000001" + reason + "without a checkpoint so far",
                             "checkpoint step-00000003 written: checkpoints work again",
                             "checkpoint step-00000005" + reason + "the last good one is step-00000004",
                         });
}

TEST_CASE("a state.json of more than 64 MiB is not read") {
  const CheckpointFolder folder;
  folder.make("step-00000001", true);
  const std::string path = folder.path.string() + "/step-00000001";
  fs::resize_file(path + "/state.json", (64u << 20) + 1);  // a hole of the file
  CHECK(read_checkpoint_state(path).error().text ==
        path + "/state.json: is larger than 64 MiB: train did not write this file");
  fs::resize_file(path + "/state.json", 64u << 20);
  CHECK(read_checkpoint_state(path).error().text.starts_with(path + "/state.json: is of format none "));
}

TEST_CASE("a checkpoint that is written again exists at every moment") {
  const CheckpointFolder folder;
  Training training(folder);
  training.write(3);
  REQUIRE(training.writer.wait().has_value());
  std::atomic<bool> ends = false, missed = false;
  std::thread watch([&] {
    while (!ends)
      missed = missed || !folder.holds("step-00000003/state.json");
  });
  for (int i = 0; i < 30; ++i) {
    training.write(3);
    CHECK(training.writer.wait().has_value());
  }
  ends = true;
  watch.join();
  CHECK_FALSE(missed);
  CHECK(*list_checkpoints(folder.path.string()) == std::vector<std::string>{"step-00000003"});
  CHECK(std::distance(fs::directory_iterator(folder.path.string()), fs::directory_iterator()) == 1);
}

TEST_CASE("a checkpoint is replaced on a disk that cannot exchange names") {
  const CheckpointFolder folder;
  Training training(folder);
  const NoExchange disk;
  std::vector<std::uint32_t> sums;
  for (const float weight : {1.0f, 2.0f}) {
    CheckpointContent<float> content = content_of(training.model, 3);
    content.parameters.span()[0] = weight;
    training.writer.write(std::move(content));
    CHECK(training.writer.wait().has_value());
    std::ifstream state(folder.path.string() + "/step-00000003/state.json");
    sums.push_back(nlohmann::json::parse(state).at("model_crc32").get<std::uint32_t>());
  }
  CHECK(NoExchange::refused == 1);
  CHECK(sums[0] != sums[1]);
  CHECK(std::distance(fs::directory_iterator(folder.path.string()), fs::directory_iterator()) == 1);
}

TEST_CASE("unfinished checkpoints of an ended training are removed, and similar names stay") {
  const CheckpointFolder folder;
  const std::vector<std::string> left = {".tmp-17-step-00000003",
                                         ".tmp-18446744073709551615-old-step-00000004"};
  const std::vector<std::string> foreign = {".tmp-backup",         ".tmp-17",        ".tmp-17-step-3x",
                                            ".tmp--step-00000003", ".tmp-x-step-17", ".tmp-2024-01-05",
                                            ".tmp-17-old-mine",    ".tmp-"};
  for (const std::string& name : left)
    folder.make(name, true);
  for (const std::string& name : foreign)
    folder.make(name, true);
  std::ofstream(folder.path.string() + "/.tmp-19") << "notes";
  std::ofstream(folder.path.string() + "/.tmp-20-step-00000003") << "notes";
  fs::create_directory_symlink(folder.path.string() + "/.tmp-backup",
                               folder.path.string() + "/.tmp-21-step-00000003");
  (void)Training(folder);
  for (const std::string& name : left)
    CHECK_FALSE(folder.holds(name));
  for (const std::string& name : foreign)
    CHECK(folder.holds(name + "/state.json"));
  for (const char* name : {".tmp-19", ".tmp-20-step-00000003", ".tmp-21-step-00000003"})
    CHECK(folder.holds(name));
}

}  // namespace
}  // namespace ddp::train
