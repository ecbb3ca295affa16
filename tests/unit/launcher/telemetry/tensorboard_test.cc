#include "launcher/telemetry/tensorboard.h"

#include <string>

#include "tests/support/catch.h"

namespace ddp::launcher {
namespace {

using namespace std::chrono_literals;

TEST_CASE("a record for each new step, and one that forgets the steps that are repeated") {
  constexpr std::chrono::system_clock::time_point kTime{1'700'000'000'000ms};
  TensorBoardEvents events;
  JobProgress::Figures figures;
  CHECK(events.add(figures, kTime).empty());
  figures.step = 7;
  const std::string first = events.add(figures, kTime);
  // As TensorFlow writes it: length 24, its masked CRC, the event, and the masked CRC of it.
  const std::string version("\x1a\0\0\0\0\0\0\0", 8);
  CHECK(first.substr(0, 8) == version);
  CHECK(first.find("brain.Event:2") != std::string::npos);
  CHECK(first.find("train/goodput") != std::string::npos);
  CHECK(first.find("train/loss") == std::string::npos);
  CHECK(events.add(figures, kTime).empty());
  figures.step = 9;
  figures.loss = 0.5;
  const std::string second = events.add(figures, kTime);
  CHECK(second.find("brain") == std::string::npos);
  CHECK(second.find("train/loss") != std::string::npos);
  figures.step = 8;
  const std::string again = events.add(figures, kTime);
  CHECK(again.find(std::string("\x10\x08\x3a\x02\x08\x01", 6)) !=
        std::string::npos);  // step 8, SessionLog START
  CHECK(again.size() > second.size());
}

}  // namespace
}  // namespace ddp::launcher
