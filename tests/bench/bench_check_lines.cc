// bench_check_lines WORKERS COUNT [LABEL_OFFSET] < merged
//
// Checks merged output of bench_lines. Each line must hold one whole record, after an optional label. Prints
// a JSON object with these counts:
//   lines, bytes  size of the input
//   good          lines with a whole record
//   torn          lines without a whole record
//   lost          records that no line holds whole
//   dup           repetitions of a record
//   reordered     records behind a later record of the same rank
//   unlabelled    records without a label
//   mislabelled   records whose label does not end with the number RANK + LABEL_OFFSET
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

struct Counts {
  long lines = 0, good = 0, torn = 0, lost = 0, dup = 0, reordered = 0, unlabelled = 0, mislabelled = 0,
       bytes = 0;
};

struct Record {
  long rank, number;
  std::size_t at;  ///< offset in the line
};

/// Reads a number and the blank after it, and moves `at` behind both. Returns false if either is missing.
bool take_number(std::string_view line, std::size_t& at, long& value) {
  const std::size_t first = at;
  for (value = 0; at < line.size() && line[at] >= '0' && line[at] <= '9'; ++at)
    value = value * 10 + (line[at] - '0');
  return at > first && at < line.size() && line[at++] == ' ';
}

bool find_record(std::string_view line, Record& record) {
  if (line.size() < 9 || line[line.size() - 9] != ' ') return false;
  const std::string_view said = line.substr(line.size() - 8);
  for (std::size_t begin = 0; (begin = line.find("L ", begin)) != line.npos; begin += 2) {
    std::size_t at = begin + 2;
    if (!take_number(line, at, record.rank) || !take_number(line, at, record.number) || at > line.size() - 9)
      continue;
    std::uint32_t hash = 2166136261U;
    for (const char byte : line.substr(begin, line.size() - 9 - begin)) {
      hash = (hash ^ static_cast<unsigned char>(byte)) * 16777619U;
    }
    char text[9];
    std::snprintf(text, sizeof text, "%08x", hash);
    if (said == std::string_view(text, 8)) {
      record.at = begin;
      return true;
    }
  }
  return false;
}

long last_number(std::string_view label) {
  const std::size_t last = label.find_last_of("0123456789");
  if (last == label.npos) return -1;
  std::size_t first = last;
  while (first > 0 && label[first - 1] >= '0' && label[first - 1] <= '9')
    --first;
  return std::atol(label.data() + first);
}

class Check {
 public:
  Check(long workers, long count, long label_offset)
      : workers_(workers),
        count_(count),
        label_offset_(label_offset),
        seen_(static_cast<std::size_t>(workers * count)),
        last_(static_cast<std::size_t>(workers), -1) {}

  void check_line(std::string_view line) {
    ++all_.lines;
    Record record{};
    if (!find_record(line, record) || record.rank >= workers_ || record.number >= count_) {
      ++all_.torn;
      return;
    }
    ++all_.good;
    const auto rank = static_cast<std::size_t>(record.rank);
    if (seen_[static_cast<std::size_t>(record.rank * count_ + record.number)]++ != 0) ++all_.dup;
    if (record.number < last_[rank]) ++all_.reordered;
    last_[rank] = record.number;
    if (record.at == 0) {
      ++all_.unlabelled;
    } else if (last_number(line.substr(0, record.at)) != record.rank + label_offset_) {
      ++all_.mislabelled;
    }
  }

  Counts finish(long bytes) {
    for (const unsigned char times : seen_)
      all_.lost += times == 0;
    all_.bytes = bytes;
    return all_;
  }

 private:
  long workers_, count_, label_offset_;
  std::vector<unsigned char> seen_;
  std::vector<long> last_;
  Counts all_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: bench_check_lines WORKERS COUNT [LABEL_OFFSET] < merged\n", stderr);
    return 2;
  }
  Check check(std::atol(argv[1]), std::atol(argv[2]), argc > 3 ? std::atol(argv[3]) : 0);
  char* text = nullptr;
  std::size_t room = 0;
  long bytes = 0;
  for (ssize_t size = 0; (size = ::getline(&text, &room, stdin)) > 0; bytes += size) {
    std::string_view line(text, static_cast<std::size_t>(size));
    if (line.back() == '\n') line.remove_suffix(1);
    check.check_line(line);
  }
  std::free(text);
  const Counts all = check.finish(bytes);
  std::printf(
      "{\"lines\":%ld,\"good\":%ld,\"torn\":%ld,\"lost\":%ld,\"dup\":%ld,\"reordered\":%ld,\"unlabelled\":%"
      "ld,"
      "\"mislabelled\":%ld,\"bytes\":%ld}\n",
      all.lines, all.good, all.torn, all.lost, all.dup, all.reordered, all.unlabelled, all.mislabelled,
      all.bytes);
  return 0;
}
