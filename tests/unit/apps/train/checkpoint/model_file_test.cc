#include "apps/train/checkpoint/model_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "apps/train/model/model.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

using namespace ddp::train;

namespace {

struct Folder : ddp::test::TemporaryDirectory {
  std::string operator/(const std::string& name) const { return path.string() + '/' + name; }
};

ThreadPool one_thread(1);

std::string file_of(const std::string& header, const std::string& data) {
  std::string text;
  for (int i = 0; i < 8; ++i)
    text += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return text + header + data;
}

/// Accepts every header.
ddp::Result<> take_any(const Safetensors&) {
  return {};
}

}  // namespace

TEMPLATE_TEST_CASE("a model survives its file bit for bit", "", float, double) {
  const Folder folder;
  ConvNet<TestType> written(1, one_thread), read(1, one_thread);
  written.initialise(1);
  read.initialise(2);
  written.running_statistics()[3] = TestType(0.25);
  written.batches() = 7;
  REQUIRE(export_model<TestType>(folder / "m.safetensors", written).has_value());
  REQUIRE(import_model<TestType>(folder / "m.safetensors", read).has_value());
  CHECK(std::ranges::equal(written.parameters(), read.parameters()));
  CHECK(std::ranges::equal(written.running_statistics(), read.running_statistics()));
  CHECK(read.batches() == 7);
  CHECK_FALSE(std::filesystem::exists(folder / "m.safetensors.tmp"));

  ConvNet<float> narrow(1, one_thread);
  REQUIRE(import_model<float>(folder / "m.safetensors", narrow).has_value());
  CHECK(narrow.parameters()[5] == static_cast<float>(written.parameters()[5]));

  const auto file = Safetensors::read(folder / "m.safetensors", take_any);
  REQUIRE(file.has_value());
  CHECK(file->metadata().at("format") == "pt");
  std::int64_t batches = 0;
  CHECK(file->copy<std::int64_t>("layer1.1.num_batches_tracked", 0, std::span(&batches, 1)));
  CHECK(batches == 7);
  CHECK_FALSE(file->copy<std::int64_t>("none", 0, std::span(&batches, 1)));
  CHECK(file->tensors().at("layer1.1.num_batches_tracked").shape.empty());
  CHECK(file->tensors().at("layer2.0.weight").shape == std::vector<std::int64_t>{32, 16, 5, 5});
}

TEST_CASE("a file of a model may lack the number of batches") {
  const Folder folder;
  ConvNet<double> net(1, one_thread);
  net.initialise(1);
  const ModelState<double> state(net, net.parameters(), net.running_statistics(), 7);
  std::vector<TensorView> tensors(state.tensors().begin(), state.tensors().end());
  std::erase_if(tensors,
                [](const TensorView& tensor) { return tensor.name.ends_with("num_batches_tracked"); });
  REQUIRE(write_safetensors(folder / "m", tensors, {}).has_value());
  net.batches() = 5;
  REQUIRE(import_model<double>(folder / "m", net).has_value());
  CHECK(net.batches() == 0);
}

TEST_CASE("a file has the umask's mode, and its numbers are aligned") {
  const Folder folder;
  ConvNet<float> net(1, one_thread);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  REQUIRE(export_model<float>(folder / "m", net).has_value());
  CHECK(static_cast<mode_t>(std::filesystem::status(folder / "m").permissions()) == (0666 & ~mask));
  std::ifstream file(folder / "m", std::ios::binary);
  CHECK(file.get() % 8 == 0);  // the last byte of the header's length
}

TEST_CASE("the names in a file are in the order of PyTorch's state_dict") {
  const Folder folder;
  ConvNet<float> net(1, one_thread);
  REQUIRE(export_model<float>(folder / "m", net).has_value());
  std::ifstream file(folder / "m", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  std::size_t last = 0;
  for (const char* name :
       {"layer1.0.weight", "layer1.0.bias", "layer1.1.weight", "layer1.1.bias", "layer1.1.running_mean",
        "layer1.1.running_var", "layer1.1.num_batches_tracked", "layer2.0.weight", "layer2.0.bias",
        "layer2.1.weight", "layer2.1.bias", "layer2.1.running_mean", "layer2.1.running_var",
        "layer2.1.num_batches_tracked", "fc.weight", "fc.bias"}) {
    const std::size_t at = text.find('"' + std::string(name) + '"');
    INFO(name);
    REQUIRE(at != std::string::npos);
    CHECK(at > last);
    last = at;
  }
}

TEST_CASE("numbers in a file are in PyTorch's order") {
  ConvNet<float> net(1, one_thread);
  const TensorInfo& conv = net.parameter_tensors()[4];
  std::vector<float> ours(conv.size), torch(conv.size), back(conv.size);
  // out 3, in 5, ky 1, kx 4
  ours[((1 * 5 + 4) * 16 + 5) * 32 + 3] = 1;
  to_torch_order<float>(conv, ours, torch);
  CHECK(torch[((3 * 16 + 5) * 5 + 1) * 5 + 4] == 1);
  from_torch_order<float>(conv, torch, back);
  CHECK(back == ours);

  const TensorInfo& fc = net.parameter_tensors()[8];
  ours.assign(fc.size, 0);
  torch.assign(fc.size, 0);
  back.assign(fc.size, 0);
  ours[(2 * 49 + 6 * 7 + 1) * 32 + 9] = 1;  // class 2, y 6, x 1, channel 9
  to_torch_order<float>(fc, ours, torch);
  CHECK(torch[2 * 1568 + 9 * 49 + 6 * 7 + 1] == 1);
  from_torch_order<float>(fc, torch, back);
  CHECK(back == ours);
}

TEST_CASE("a file of another model is refused with the first tensor that differs") {
  const Folder folder;
  Mlp<float> mlp(8, 1, 1, one_thread), wider(9, 1, 1, one_thread);
  ConvNet<float> conv(1, one_thread);
  const std::string path = folder / "mlp.safetensors";
  REQUIRE(export_model<float>(path, mlp).has_value());
  CHECK(import_model<float>(path, conv).error().text ==
        path + ": tensor layer1.0.weight is missing; check that the file is of --model convnet");
  CHECK(import_model<float>(path, wider).error().text ==
        path + ": tensor 0.weight is [8, 784]; the mlp takes [9, 784]");
}

TEST_CASE("no memory is allocated for a large file before its header is read") {
  const Folder folder;
  const std::string path = folder / "sparse";
  const std::string header = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
  for (const std::string& begin : {std::string("x"), file_of(header, "1234")}) {
    std::ofstream(path, std::ios::binary) << begin;
    std::filesystem::resize_file(path, std::uintmax_t{1} << 40);
    CHECK_FALSE(Safetensors::read(path, take_any).has_value());
  }
}

TEST_CASE("no memory is allocated for tensors that the model does not need, although the header is valid") {
  const Folder folder;
  const std::string path = folder / "sparse";
  Mlp<float> mlp(8, 1, 1, one_thread);
  REQUIRE(export_model<float>(path, mlp).has_value());
  std::ifstream file(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::size_t length = static_cast<unsigned char>(good[0]) + 256u * static_cast<unsigned char>(good[1]);
  const auto refusal = [&](const std::function<void(nlohmann::json&, std::uint64_t end)>& change) {
    constexpr std::uint64_t kHuge = std::uint64_t{1} << 39;
    auto header = nlohmann::json::parse(good.substr(8, length));
    const std::uint64_t end = good.size() - 8 - length;
    change(header, end);
    std::ofstream(path, std::ios::binary) << file_of(header.dump(), good.substr(8 + length));
    std::filesystem::resize_file(path, 8 + header.dump().size() + end + kHuge);
    const auto done = import_model<float>(path, mlp);
    return done ? "" : done.error().text;
  };
  const auto huge = [](const char* type, std::uint64_t begin) {
    return nlohmann::json{
        {"dtype", type}, {"shape", {1 << 30, 128}}, {"data_offsets", {begin, begin + (1ull << 39)}}};
  };
  const std::string prefix = path + ": tensor ";
  CHECK(refusal([&](auto& header, std::uint64_t end) { header["extra"] = huge("F32", end); }) ==
        prefix + "extra is unknown to the mlp");
  CHECK(refusal([&](auto& header, std::uint64_t end) { header["2.bias"] = huge("F32", end); }) ==
        path + ": has bytes that belong to no tensor");
  CHECK(refusal([&](auto& header, std::uint64_t end) { header["extra"] = huge("BF16", end); }) ==
        prefix + "extra is not of type F32, F64 or I64");
}

TEST_CASE("weights that are not finite are refused as initial weights") {
  const Folder folder;
  for (const bool last : {false, true}) {
    Mlp<float> mlp(8, 1, 1, one_thread);
    (last ? mlp.parameters().back() : mlp.parameters().front()) = std::numeric_limits<float>::quiet_NaN();
    REQUIRE(export_model<float>(folder / "nan", mlp).has_value());
    const auto done = import_model<float>(folder / "nan", mlp);
    REQUIRE(!done);
    CHECK(done.error().text.find((folder / "nan") + ": tensor ") == 0);
    CHECK(done.error().text.find(" has a number that is not finite") != std::string::npos);
  }
}

TEST_CASE("the place of an export is checked and stays as it was") {
  const Folder folder;
  CHECK(check_export_path(folder / "new").has_value());
  CHECK(std::filesystem::is_empty(folder / ""));
  std::ofstream(folder / "old") << "weights";
  CHECK(check_export_path(folder / "old").has_value());
  CHECK(std::filesystem::file_size(folder / "old") == 7);
  CHECK(check_export_path(folder / "").error().text ==
        "--export " + (folder / "") + ": exists and is not a regular file");
  CHECK(check_export_path(folder / "none/new").error().text ==
        "--export " + (folder / "none/new.tmp") + ": there is no directory " + (folder / "none/"));
  const std::string in_proc = check_export_path("/proc/new").error().text;
  CHECK((in_proc == "--export /proc/new.tmp: no file can be created in /proc/" ||
         in_proc == "--export /proc/new.tmp: Permission denied"));
}

TEST_CASE("a header with false values is refused") {
  const Folder folder;
  const std::string path = folder / "x";
  const auto text_of = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    const auto file = Safetensors::read(path, take_any);
    return file ? std::string() : file.error().text;
  };
  CHECK(text_of("abc") == path + ": not a safetensors file: shorter than 8 bytes");
  CHECK(text_of(std::string(8, '\xff')) ==
        path + ": not a safetensors file: its header would be longer than the file");
  const std::string deep = "{\"a\":" + std::string(60'000'000, '[');
  CHECK(text_of(file_of(deep, "")) ==
        path + ": its header has 60000005 bytes, and train reads at most 4 MiB");
  CHECK(text_of(file_of("[]", "")) == path + ": not a safetensors file: its header is not a JSON object");
  CHECK(text_of(file_of("{\"a\":", "")) ==
        path + ": not a safetensors file: its header is not a JSON object");
  const auto tensor = [](const std::string& shape, const std::string& offsets) {
    return "{\"a\":{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}}";
  };
  CHECK(text_of(file_of(tensor("[1]", "[0,4]"), "1234")) == "");
  CHECK(text_of(file_of(tensor("[0,4294967296]", "[0,0]"), "")) == "");
  CHECK(text_of(file_of(tensor("[2]", "[0,8]"), "1234")) ==
        path + ": tensor a lies outside the file; is the file truncated?");
  CHECK(text_of(file_of(tensor("[1]", "[4,0]"), "1234")) ==
        path + ": tensor a lies outside the file; is the file truncated?");
  CHECK(text_of(file_of(tensor("[2]", "[0,4]"), "1234")) ==
        path + ": tensor a has a shape that does not fit its bytes");
  CHECK(text_of(file_of(tensor("[4294967296,4294967296]", "[0,4]"), "1234")) ==
        path + ": tensor a is larger than the file");
  CHECK(text_of(file_of(tensor("[-1]", "[0,4]"), "1234")) ==
        path + ": tensor a has a shape that is not a list of numbers");
  CHECK(text_of(file_of(tensor("1", "[0,4]"), "1234")) ==
        path + ": tensor a has no valid shape and data_offsets");
  CHECK(text_of(file_of(tensor("[1]", "[0]"), "1234")) ==
        path + ": tensor a has no valid shape and data_offsets");
  CHECK(text_of(file_of("{\"a\":{\"dtype\":\"F32\"}}", "")) == path + ": tensor a is not a tensor");
  CHECK(text_of(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "")) ==
        path + ": tensor a is not a tensor");
  const std::string other = " is not of type F32, F64 or I64";
  CHECK(text_of(file_of("{\"a\":{\"dtype\":7},\"b\":3}", "")) == path + ": tensor a" + other);
  CHECK(text_of(file_of("{\"b\":3}", "")) == path + ": tensor b" + other);
  CHECK(text_of(file_of("{\"a\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]}}", "1234")) ==
        path + ": tensor a" + other);
  CHECK(text_of(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                        "1234")) == path + ": has tensors that overlap");
  const auto two = [](const char* first, const char* second) {
    return R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)" + std::string(first) +
           R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + second + "}}";
  };
  // The number of bytes is right, but their places are wrong.
  CHECK(text_of(file_of(two("[4,8]", "[0,8]"), "123456789012")) == path + ": has tensors that overlap");
  CHECK(text_of(file_of(two("[0,4]", "[8,16]"), "1234567890123456")) ==
        path + ": has bytes that belong to no tensor");
  CHECK(text_of(file_of(tensor("[1]", "[0,4]"), "12345678")) == path + ": is longer than its tensors");
  CHECK(Safetensors::read(folder / "none", take_any).error().text ==
        "open " + (folder / "none") + ": No such file or directory");
}
