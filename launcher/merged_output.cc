#include "launcher/merged_output.h"

#include <chrono>
#include <cstdlib>
#include <utility>

namespace ddp::launcher {
namespace {

std::chrono::nanoseconds now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

}  // namespace

struct MergedOutput::Rank {
  Rank(int local, LiveBoard::Entry out, LiveBoard::Entry err)
      : local_rank(local), streams{std::move(out), std::move(err)} {}
  int local_rank;
  std::array<LiveBoard::Entry, 2> streams;
  std::array<bool, 2> shown{true, true};
  StderrTail tail;
  bool wrote_stderr = false;
};

MergedOutput::MergedOutput(JobWriter& files, Console& console, const OutputOptions& options, Source source)
    : files_(files),
      console_(console),
      options_(options),
      source_(std::move(source)),
      board_(options.bars, {console.shows_rows(1), console.shows_rows(2)}),
      timer_(console.loop()) {}

MergedOutput::~MergedOutput() = default;

LiveBoard::Entry MergedOutput::new_entry(std::uint32_t rank, LineSource source, int stream) const {
  source.stream = stream == 1 ? "stdout" : "stderr";
  const bool coloured =
      colours_wanted(console_.is_terminal(stream), std::getenv("NO_COLOR"), std::getenv("TERM"));
  Label label;
  if (options_.label_on) label = Label(options_.label, source, coloured ? label_colour(source.node_rank) : 0);
  return {std::move(label), rank, source.node_rank, stream};
}

MergedOutput::Rank& MergedOutput::rank_state(std::uint32_t attempt, std::uint32_t rank) {
  if (attempt != attempt_) {
    finish_all();
    ranks_.clear();
    attempt_ = attempt;
  }
  if (rank >= ranks_.size()) ranks_.resize(rank + 1);
  if (!ranks_[rank]) {
    const LineSource source = source_(rank);
    ranks_[rank] =
        std::make_unique<Rank>(source.local_rank, new_entry(rank, source, 1), new_entry(rank, source, 2));
    for (const std::uint8_t stream : {1, 2})
      ranks_[rank]->shown[stream - 1u] = options_.shows(rank, source.local_rank, stream);
  }
  return *ranks_[rank];
}

void MergedOutput::take(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream,
                        std::string_view bytes) {
  Rank& state = rank_state(attempt, rank);
  if (!bytes.empty()) {
    files_.append({attempt, rank, state.local_rank, stream}, bytes);
    if (stream == 2) {
      state.tail.add(bytes);
      state.wrote_stderr = true;
    }
  }
  if (!state.shown[stream - 1u]) return;
  LiveBoard::Entry& entry = state.streams[stream - 1u];
  lines_.clear();
  if (bytes.empty())
    entry.lines.finish(lines_);
  else
    entry.lines.add(bytes, lines_);
  board_.changed(entry);
  show_rows();  // before the lines: a bar's row must not stand there twice
  console_.add(stream, lines_);
  arm();
}

// ---- live rows

void MergedOutput::show_rows() {
  for (const int stream : {1, 2}) {
    if (board_.take_news(stream) && console_.shows_rows(stream)) console_.show(stream, board_.rows(stream));
  }
}

void MergedOutput::arm() {
  if (armed_ || resting_) return;
  const auto due = board_.due();
  if (!due) return;
  armed_ = true;
  timer_.expires_at(std::chrono::steady_clock::time_point(*due));
  timer_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) tick();
  });
}

void MergedOutput::tick() {
  armed_ = false;
  std::array<std::string, 2> lines;
  board_.tick(now(), lines);
  show_rows();
  console_.add(1, lines[0]);
  console_.add(2, lines[1]);
  arm();
}

void MergedOutput::rest() {
  resting_ = true;
  timer_.cancel();
}

void MergedOutput::finish_all() {
  board_.clear();
  show_rows();
  for (const auto& rank : ranks_) {
    if (!rank) continue;
    for (LiveBoard::Entry& entry : rank->streams) {
      lines_.clear();
      entry.lines.finish(lines_);
      console_.add(entry.stream, lines_);
    }
  }
}

// ---- for the report

const MergedOutput::Rank* MergedOutput::find(std::uint32_t attempt, std::uint32_t rank) const {
  return attempt == attempt_ && rank < ranks_.size() ? ranks_[rank].get() : nullptr;
}

std::vector<std::string> MergedOutput::last_stderr(std::uint32_t attempt, std::uint32_t rank) const {
  const Rank* found = find(attempt, rank);
  return found != nullptr ? found->tail.lines() : std::vector<std::string>();
}

std::string MergedOutput::stderr_file(std::uint32_t attempt, std::uint32_t rank) const {
  const Rank* found = find(attempt, rank);
  return found != nullptr && found->wrote_stderr ? files_.file(attempt, rank, 2) : std::string();
}

}  // namespace ddp::launcher
