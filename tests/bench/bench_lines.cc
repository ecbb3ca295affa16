// A worker that prints lines as fast as it can. bench_check_lines verifies that each line has arrived whole.
//
// bench_lines RANK COUNT [LENGTH [BLOCK]]
//   Prints COUNT lines of LENGTH bytes (default 100, newline included), in writes of 64 KiB:
//   "L <rank> <number> <filler> <FNV-1a hash of the text before>\n". BLOCK sets the size of the writes.
//   Writes of BLOCK bytes end within lines, as those of stdio (4096) and Python (8192) do.
//
// bench_lines RANK timed COUNT MEAN_MS
//   Prints COUNT lines, each after a random wait of MEAN_MS on average:
//   "T <rank> <number> <CLOCK_MONOTONIC in ns before the write>\n".
//
// bench_lines RANK odd KIND [BYTES]
//   Prints output that launchers often damage. KIND is one of:
//     long        a line of BYTES bytes
//     bar         a progress bar of 40 updates, separated by carriage returns
//     no-newline  a last line without a newline
//     nul         NUL bytes
//     utf8        invalid UTF-8
//     crlf        a line that ends with CR LF
//     flood       BYTES bytes without a newline
//
// RANK "-" takes the rank from the launcher's environment. Over plain ssh the rank comes from the node's
// address, 127.0.0.(2 + rank).
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

namespace {

int rank_of(std::string_view argument) {
  if (argument != "-") return std::atoi(argument.data());
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", "RANK", "BENCH_RANK"}) {
    if (const char* value = std::getenv(name)) return std::atoi(value);
  }
  const char* connection = std::getenv("SSH_CONNECTION");  // client address and port, server address and port
  if (connection == nullptr) return 0;
  const std::string_view all = connection;
  const std::string_view ours = all.substr(0, all.rfind(' '));
  return std::atoi(ours.data() + ours.rfind('.') + 1) - 2;
}

void put(std::string_view text) {
  while (!text.empty()) {
    const ssize_t size = ::write(1, text.data(), text.size());
    if (size <= 0) std::exit(3);
    text.remove_prefix(static_cast<std::size_t>(size));
  }
}

/// Writes one line to `out` and returns its size: `length`, or more if the fields need more.
std::size_t make_line(char* out, int rank, long number, std::size_t length) {
  std::size_t size = static_cast<std::size_t>(std::sprintf(out, "L %d %ld ", rank, number));
  for (; size + 10 < length; ++size)
    out[size] = static_cast<char>('a' + (size + static_cast<std::size_t>(number)) % 26);
  std::uint32_t hash = 2166136261U;
  for (std::size_t at = 0; at < size; ++at)
    hash = (hash ^ static_cast<unsigned char>(out[at])) * 16777619U;
  return size + static_cast<std::size_t>(std::sprintf(out + size, " %08x\n", hash));
}

std::string line(int rank, long number, std::size_t length = 100) {
  std::string text(length + 64, '\0');
  text.resize(make_line(text.data(), rank, number, length));
  return text;
}

void put_lines(int rank, long count, std::size_t length, std::size_t block) {
  constexpr std::size_t kWrite = 65536;
  std::string buffer(kWrite + 2 * (length + 64) + block, '\0');
  std::size_t held = 0;
  for (long number = 0; number < count; ++number) {
    held += make_line(buffer.data() + held, rank, number, length);
    if (block != 0) {
      for (; held >= block; held -= block) {
        put({buffer.data(), block});
        std::memmove(buffer.data(), buffer.data() + block, held - block);
      }
    } else if (held + length + 32 > kWrite) {
      put({buffer.data(), held});
      held = 0;
    }
  }
  put({buffer.data(), held});
}

void put_timed(int rank, long count, double mean_ms) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<double> wait_ms(0, 2 * mean_ms);
  for (long number = 0; number < count; ++number) {
    timespec wait{0, static_cast<long>(wait_ms(random) * 1e6)};
    wait.tv_sec = wait.tv_nsec / 1'000'000'000;
    wait.tv_nsec %= 1'000'000'000;
    ::nanosleep(&wait, nullptr);
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    char text[96];
    const long long ns = static_cast<long long>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
    put({text, static_cast<std::size_t>(std::sprintf(text, "T %d %ld %lld\n", rank, number, ns))});
  }
}

void put_bar(int rank) {
  for (int step = 1; step <= 40; ++step) {
    char text[96];
    const int size = std::sprintf(text, "\rrank %d: %3d%%|%.*s| %d/40", rank, step * 100 / 40, step / 4,
                                  "##########", step);
    put({text, static_cast<std::size_t>(size)});
    const timespec pause{0, 50'000'000};
    ::nanosleep(&pause, nullptr);
  }
  put("\ndone\n");
}

bool put_unusual(int rank, std::string_view kind, std::size_t bytes) {
  using namespace std::string_literals;
  if (kind == "bar") {
    put_bar(rank);
  } else if (kind == "long") {
    put(line(rank, 0, bytes) + line(rank, 1));
  } else if (kind == "no-newline") {
    const std::string last = line(rank, 2);
    put(line(rank, 0) + line(rank, 1) + last.substr(0, last.size() - 1));
  } else if (kind == "nul") {
    put(line(rank, 0) + "nul \0 of rank "s + std::to_string(rank) + "\0\n"s + line(rank, 1));
  } else if (kind == "utf8") {
    put(line(rank, 0) + "bad \xff\xc3( \xe2\x82 of rank " + std::to_string(rank) + "\n" + line(rank, 1));
  } else if (kind == "crlf") {
    put(line(rank, 0) + "crlf of rank " + std::to_string(rank) + "\r\n" + line(rank, 1));
  } else if (kind == "flood") {
    std::string block(65536, static_cast<char>('a' + rank % 26));
    for (std::size_t left = bytes; left != 0; left -= std::min(left, block.size())) {
      put(std::string_view(block).substr(0, std::min(left, block.size())));
    }
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int at, long otherwise) { return argc > at ? std::atol(argv[at]) : otherwise; };
  if (argc >= 3) {
    const int rank = rank_of(argv[1]);
    const std::string_view what = argv[2];
    if (what == "odd" && argc >= 4)
      return put_unusual(rank, argv[3], static_cast<std::size_t>(argument(4, 0))) ? 0 : 2;
    if (what == "timed" && argc >= 5) {
      put_timed(rank, argument(3, 0), std::atof(argv[4]));
    } else {
      put_lines(rank, argument(2, 0), static_cast<std::size_t>(argument(3, 100)),
                static_cast<std::size_t>(argument(4, 0)));
    }
    return 0;
  }
  std::fputs("usage: bench_lines RANK COUNT|timed|odd … (see the source)\n", stderr);
  return 2;
}
