#include "apps/train/data/dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "tests/support/catch.h"

using namespace ddp::train;

TEST_CASE("data in memory is found by its own ticket only") {
  DataSplit data = synthetic_data(300);
  data.checksums = {1, 2, 3, 4};
  const std::uint64_t source = data_source("synthetic", 300);
  auto made = DataMemory::make(data, source);
  REQUIRE(made.has_value());
  REQUIRE(made->has_value());
  const DataTicket ticket = (*made)->ticket(3);
  CHECK(ticket.node == 3);
  CHECK(DataTicket::of(ticket.words().data()).words() == ticket.words());

  const auto taken = DataMemory::take(ticket);
  REQUIRE(taken.has_value());
  const DataSplit there = taken->data();
  CHECK(std::ranges::equal(there.training.images, data.training.images));
  CHECK(std::ranges::equal(there.training.labels, data.training.labels));
  CHECK(std::ranges::equal(there.test.images, data.test.images));
  CHECK(std::ranges::equal(there.test.labels, data.test.labels));
  CHECK(there.checksums == data.checksums);
  // A process that took the memory can share it, too.
  CHECK(DataMemory::take(taken->ticket(3)).has_value());

  for (int wrong = 1; wrong < 6; ++wrong) {
    auto words = ticket.words();
    words[static_cast<std::size_t>(wrong)] += 1000;
    INFO("word " << wrong);
    CHECK_FALSE(DataMemory::take(DataTicket::of(words.data())).has_value());
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
  CHECK(DataMemory::take(ticket).error().text == "the data of another process of this node: /proc/" +
                                                     std::to_string(::getpid()) + "/fd/" +
                                                     std::to_string(copy.get()) + " is not sealed");
  // Its descriptor is not writable.
  CHECK(::pwrite(static_cast<int>((*made)->ticket(0).fd), "x", 1, 0) == -1);

  const auto drawn = DataMemory::make(synthetic_data(70'000), 1);
  REQUIRE(drawn.has_value());
  CHECK_FALSE(drawn->has_value());
}
