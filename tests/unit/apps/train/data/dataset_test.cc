#include "apps/train/data/dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>

#include "tests/support/catch.h"
#include "tests/support/temporary_directory.h"

namespace ddp::train {
namespace {

struct Folder : test::TemporaryDirectory {
  std::string write_gzip(const std::string& name, const std::string& bytes) const {
    const std::string file = path / name;
    const gzFile packed = gzopen(file.c_str(), "wb");
    gzwrite(packed, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(packed);
    return file;
  }
};

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string big_endian(std::uint32_t n) {
  return {static_cast<char>(n >> 24), static_cast<char>(n >> 16), static_cast<char>(n >> 8),
          static_cast<char>(n)};
}

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& data, char type = 8) {
  std::string bytes{0, 0, type, static_cast<char>(sizes.size())};
  for (const auto size : sizes)
    bytes += big_endian(size);
  return bytes + data;
}

/// Returns the error's text without the path.
std::string problem(const std::string& path, int dimensions = 1, std::uint64_t limit = 1'000) {
  const auto result = read_idx(path, dimensions, limit);
  REQUIRE_FALSE(result.has_value());
  const std::string& text = result.error().text;
  REQUIRE(text.starts_with(path + ": "));
  return text.substr(path.size() + 2);
}

TEST_CASE("an IDX array is read from a plain and from a gzip file") {
  const Folder folder;
  const std::string bytes = idx({2, 1, 3}, "abcdef");
  for (const auto& path : {folder.write("plain", bytes), folder.write_gzip("packed.gz", bytes)}) {
    const auto array = read_idx(path, 3, 6);
    REQUIRE(array.has_value());
    CHECK(array->sizes == std::vector<std::uint32_t>{2, 1, 3});
    CHECK(std::string(array->bytes.begin(), array->bytes.end()) == "abcdef");
  }
}

TEST_CASE("a malformed IDX file is refused with the reason") {
  const Folder folder;
  const auto plain = [&](const std::string& bytes) { return folder.write("f", bytes); };
  CHECK(problem(folder.path / "none") == "No such file or directory");
  CHECK(problem(folder.path) == "not a regular file");
  CHECK(problem(plain("")) == "not an IDX file: shorter than its header");
  CHECK(problem(plain("\x01\x02\x03\x04")) == "not an IDX file: it does not begin with two zero bytes");
  CHECK(problem(plain(idx({1}, "abcd", 0x0d))) == "element type 13; only unsigned bytes (8) are read");
  CHECK(problem(plain(idx({1}, "a")), 3) == "1 dimensions instead of 3");
  CHECK(problem(plain(idx({2, 2, 2}, "").substr(0, 9)), 3) == "not an IDX file: shorter than its header");
  CHECK(problem(plain(idx({5}, "abc"))) == "the header announces 5 bytes of data; the file is too short");
  CHECK(problem(plain(idx({2}, "abc"))) == "extra bytes after the 2 bytes that the header announces");
  CHECK(problem(plain(idx({1001}, "a"))) == "more than 1000 bytes of data; that is the limit");
  CHECK(problem(plain(idx({0xffffffff, 0xffffffff, 0xffffffff}, "a")), 3, ~0ull) ==
        "more than 18446744073709551615 bytes of data; that is the limit");
}

TEST_CASE("a malformed gzip file is refused with the reason, and a false size takes no memory") {
  const Folder folder;
  const std::string path = folder.write_gzip("f.gz", idx({500}, std::string(500, 'x')));
  const std::string packed = content_of(path);
  CHECK(problem(folder.write("g.gz", packed.substr(0, packed.size() - 9))) ==
        "the gzip data ends early; copy the file again");
  std::string broken = packed;
  broken[packed.size() - 8] ^= 1;  // in the checksum
  CHECK(problem(folder.write("g.gz", broken)) ==
        "broken gzip data (incorrect data check); copy the file again");
  CHECK(problem(folder.write_gzip("g.gz", idx({600}, std::string(500, 'x')))) ==
        "the header announces 600 bytes of data; the file has 500");
  CHECK(problem(folder.write_gzip("g.gz", idx({0xfffffff0}, "x")), 1, 0xffffffff) ==
        "the header announces 4294967280 bytes of data; the file is too short");
}

TEST_CASE("gzip members form one file, and other bytes behind the last member are refused") {
  const Folder folder;
  const std::string bytes = idx({500}, std::string(500, 'x'));
  const std::string packed = content_of(folder.write_gzip("a.gz", bytes.substr(0, 100))) +
                             content_of(folder.write_gzip("b.gz", bytes.substr(100)));
  const auto array = read_idx(folder.write("f.gz", packed), 1, 500);
  REQUIRE(array.has_value());
  CHECK(std::string(array->bytes.begin(), array->bytes.end()) == std::string(500, 'x'));
  for (const std::string& behind : {std::string("x"), std::string(20, '\0'), std::string(100'000, '\x1f')}) {
    CHECK(problem(folder.write("f.gz", packed + behind)) ==
          "extra bytes after the gzip data; copy the file again");
  }
  CHECK(problem(folder.write("f.gz", packed + packed.substr(0, 5))) ==
        "the gzip data ends early; copy the file again");
  CHECK(problem(folder.write("f.gz", packed + packed)) ==
        "extra bytes after the 500 bytes that the header announces");
}

TEST_CASE("a data directory's errors name file and remedy") {
  const Folder folder;
  const auto wrong = [&] {
    const auto data = load_data(folder.path, 0);
    REQUIRE_FALSE(data.has_value());
    return data.error().text;
  };
  const std::string images = folder.path / "train-images-idx3-ubyte",
                    labels = folder.path / "train-labels-idx1-ubyte";
  CHECK(wrong() ==
        images +
            ": no such file, neither plain nor .gz; give a directory with the four MNIST files by --data "
            "(Debian's package dataset-fashion-mnist brings them), or --data synthetic");
  folder.write("train-images-idx3-ubyte", idx({1, 2, 2}, "abcd"));
  folder.write("train-labels-idx1-ubyte", idx({1}, std::string(1, '\x0b')));
  CHECK(wrong() == images + ": images of 2 x 2 pixels; the model takes 28 x 28");
  folder.write("train-images-idx3-ubyte", idx({2, 28, 28}, std::string(1568, 'x')));
  CHECK(wrong() == labels + ": 1 labels for 2 images");
  folder.write("train-labels-idx1-ubyte", idx({2}, std::string("\x03\x0b")));
  CHECK(wrong() == labels + ": label 11 of image 1 is not 0 to 9");
  folder.write("train-images-idx3-ubyte", idx({0, 28, 28}, ""));
  CHECK(wrong() == images + ": holds no image");
}

TEST_CASE("the limit keeps the first training images and all test images") {
  const Folder folder;
  std::string images(3 * 784, 'a');
  images[784] = 'b';
  folder.write("train-images-idx3-ubyte", idx({3, 28, 28}, images));
  folder.write_gzip("train-labels-idx1-ubyte.gz", idx({3}, {1, 2, 3}));
  folder.write("t10k-images-idx3-ubyte", idx({3, 28, 28}, images));
  folder.write("t10k-labels-idx1-ubyte", idx({3}, {4, 5, 6}));
  const auto data = load_data(folder.path, 2);
  REQUIRE(data.has_value());
  CHECK(data->training.size() == 2);
  CHECK(data->test.size() == 3);
  // Checksums as in gzip: of the first two training images and labels, and of all test images and labels.
  const auto crc = [](const std::string& text) {
    return static_cast<std::uint32_t>(
        ::crc32(0, reinterpret_cast<const Bytef*>(text.data()), static_cast<unsigned>(text.size())));
  };
  CHECK(data->checksums == std::array<std::uint32_t, 4>{crc(images.substr(0, 2 * 784)), crc("\1\2"),
                                                        crc(images), crc("\4\5\6")});

  std::vector<float> padded(2 * 1024, 9.0f);
  std::vector<std::uint8_t> labels(2);
  fill_batch<float>(data->training, std::vector<std::uint32_t>{1, 0}, kImageBorder, padded.data(), labels);
  CHECK(labels == std::vector<std::uint8_t>{2, 1});
  CHECK(padded[0] == 0.0f);
  CHECK(padded[2 * 32 + 2] == static_cast<float>('b') / 255.0f);
  CHECK(padded[2 * 32 + 3] == static_cast<float>('a') / 255.0f);
  CHECK(padded[2 * 32 + 30] == 0.0f);
  CHECK(padded[1024 + 2 * 32 + 2] == static_cast<float>('a') / 255.0f);
}

TEST_CASE("synthetic image i does not depend on the count, and no test image is a training image") {
  const auto few = synthetic_data(10), more = synthetic_data(30);
  CHECK(few.training.size() == 10);
  CHECK(few.test.size() == 200);
  CHECK(std::equal(few.training.images.begin(), few.training.images.end(), more.training.images.begin()));
  CHECK(std::equal(few.training.labels.begin(), few.training.labels.end(), more.training.labels.begin()));
  CHECK_FALSE(std::equal(few.training.images.begin(), few.training.images.end(), few.test.images.begin()));
}

TEST_CASE("batches come in the given order, the last one smaller") {
  const DataSplit data = synthetic_data(50);
  std::vector<std::uint32_t> order(23);
  for (std::size_t i = 0; i < order.size(); ++i)
    order[i] = static_cast<std::uint32_t>(i * 7 % 50);
  BatchLoader<float> loader(data.training, order, 4, 2);
  REQUIRE(loader.batches() == 6);
  std::vector<float> expected(4 * kPaddedPixels);
  std::vector<std::uint8_t> labels(4);
  for (std::size_t batch = 0; batch < 6; ++batch) {
    const auto& got = loader.next();
    const auto samples = std::span(order).subspan(batch * 4, batch == 5 ? 3 : 4);
    REQUIRE(std::vector(got.samples.begin(), got.samples.end()) ==
            std::vector(samples.begin(), samples.end()));
    const std::size_t size = samples.size();
    fill_batch<float>(data.training, samples, 2, expected.data(), std::span(labels).first(size));
    CHECK(got.labels == std::vector<std::uint8_t>(labels.begin(), labels.begin() + static_cast<long>(size)));
    CHECK(std::equal(got.images.data(), got.images.data() + size * kPaddedPixels, expected.data()));
  }
}

TEST_CASE("a loader may be destroyed in the middle") {
  const DataSplit data = synthetic_data(50);
  std::vector<std::uint32_t> order(50);
  std::iota(order.begin(), order.end(), 0u);
  BatchLoader<double> untouched(data.training, order, 1, 0);
  BatchLoader<double> begun(data.training, order, 1, 0);
  CHECK(begun.next().samples[0] == 0);
}

TEST_CASE("data in memory is found by its own ticket only") {
  DataSplit data = synthetic_data(300);
  data.checksums = {1, 2, 3, 4};
  const std::uint64_t source = data_source("synthetic", 300);
  auto made = DataMemory::make(data, source);
  REQUIRE(made.has_value());
  REQUIRE(made->has_value());
  const DataTicket ticket = (*made)->ticket(3);
  CHECK(ticket.node == 3);

  const auto taken = DataMemory::open(ticket);
  REQUIRE(taken.has_value());
  const DataSplit there = taken->data();
  CHECK(std::ranges::equal(there.training.images, data.training.images));
  CHECK(std::ranges::equal(there.training.labels, data.training.labels));
  CHECK(std::ranges::equal(there.test.images, data.test.images));
  CHECK(std::ranges::equal(there.test.labels, data.test.labels));
  CHECK(there.checksums == data.checksums);
  // A process that took the memory can share it, too.
  CHECK(DataMemory::open(taken->ticket(3)).has_value());

  for (const auto field :
       {&DataTicket::pid, &DataTicket::fd, &DataTicket::size, &DataTicket::nonce, &DataTicket::source}) {
    DataTicket wrong = ticket;
    wrong.*field += 1000;
    CHECK_FALSE(DataMemory::open(wrong).has_value());
  }
  CHECK(data_source("synthetic", 0) != source);
  CHECK(data_source("synthetik", 300) != source);
}

TEST_CASE("memory that is not sealed is refused, and generated data has no memory") {
  auto made = DataMemory::make(synthetic_data(10), 1);
  REQUIRE(made.has_value());
  DataTicket ticket = (*made)->ticket(0);
  const std::string path = "/proc/self/fd/" + std::to_string(ticket.fd);
  const ddp::UniqueFd from(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string bytes(ticket.size, '\0');
  REQUIRE(::read(from.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  const ddp::UniqueFd copy(::memfd_create("copy", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::write(copy.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  ticket.fd = static_cast<std::uint64_t>(copy.get());
  CHECK(DataMemory::open(ticket).error().text == "the data of another process of this node: /proc/" +
                                                     std::to_string(::getpid()) + "/fd/" +
                                                     std::to_string(copy.get()) + " is not sealed");
  // Its descriptor is not writable.
  CHECK(::pwrite(static_cast<int>((*made)->ticket(0).fd), "x", 1, 0) == -1);

  const auto drawn = DataMemory::make(synthetic_data(70'000), 1);
  REQUIRE(drawn.has_value());
  CHECK_FALSE(drawn->has_value());
}

#ifndef __SANITIZE_THREAD__  // these cases have one thread, and take long
TEST_CASE("a truncated gzip file, or one with a flipped bit, gives no other data") {
  const Folder folder;
  // The data is larger than zlib's own buffers, which large reads bypass.
  std::string data;
  for (std::uint32_t i = 0; i < 40'000; ++i)
    data += static_cast<char>(i / 200 * 7);
  const std::string bytes = idx({static_cast<std::uint32_t>(data.size())}, data);
  const std::string packed = content_of(folder.write_gzip("f.gz", bytes));
  for (std::size_t cut = 1; cut <= 9; ++cut) {
    INFO("cut by " << cut);
    CHECK(problem(folder.write("g.gz", packed.substr(0, packed.size() - cut)), 1, 40'000) ==
          "the gzip data ends early; copy the file again");
  }
  for (std::size_t at = 0; at < packed.size(); ++at) {
    INFO("a wrong bit in byte " << at << " of " << packed.size());
    std::string wrong = packed;
    wrong[at] = static_cast<char>(wrong[at] ^ (1 << at % 8));
    for (const std::size_t cut : {0, 8}) {
      const auto read = read_idx(folder.write("g.gz", wrong.substr(0, packed.size() - cut)), 1, 40'000);
      // Only the header's time stamp and similar fields may differ without an error.
      CHECK((!read || (cut == 0 && std::string(read->bytes.begin(), read->bytes.end()) == data)));
    }
  }
}

TEST_CASE("images that are generated on demand equal those in memory") {
  const DataSplit stored = synthetic_data(2'000), drawn = synthetic_data(300'000'000);
  REQUIRE_FALSE(stored.training.draw);
  REQUIRE(drawn.training.draw);
  CHECK(drawn.training.size() == 300'000'000);
  CHECK(drawn.test.size() == 10'000);
  const std::vector<std::uint32_t> samples{0, 1'999, 17};
  std::vector<float> a(3 * kImagePixels), b(3 * kImagePixels);
  std::vector<std::uint8_t> of_a(3), of_b(3);
  fill_batch<float>(stored.training, samples, 0, a.data(), of_a);
  fill_batch<float>(drawn.training, samples, 0, b.data(), of_b);
  CHECK(a == b);
  CHECK(of_a == of_b);
  fill_batch<float>(drawn.training, std::vector<std::uint32_t>{299'999'999}, 0, b.data(),
                    std::span(of_b).first(1));
  CHECK(a != b);
}
#endif

}  // namespace
}  // namespace ddp::train
