#include "launcher/output/merged_output.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::seconds;

/// Bytes of a folded entry besides its text.
constexpr std::size_t kEntryCost = 512;
/// Distance between the orders of neighbors, so that other entries fit between them.
constexpr std::uint64_t kGap = std::uint64_t{1} << 32;
/// Bytes of lines that are worth a write of the console.
constexpr std::size_t kMuch = 256u << 10;

}  // namespace

// ---- folded lines

void LineFold::add(int rank, std::uint8_t stream, std::string_view text, std::string_view stamp, Time now,
                   const Sink& sink) {
  tick(now, sink);
  if (!join(rank, FoldKey{stream, text})) {
    const auto behind = place_behind(rank);
    const std::uint64_t order = order_before(behind);
    const auto made = queue_.insert(
        behind, Entry{order, arrivals_++, stream, std::string(text), std::string(stamp), {rank}, now});
    by_arrival_.emplace_hint(by_arrival_.end(), made->arrival, made);
    auto& alike = alike_[FoldKey{stream, made->text}];
    alike.insert(std::find_if(alike.begin(), alike.end(),
                              [order](const Queue::iterator& entry) { return entry->order > order; }),
                 made);
    last_[rank] = made;
    held_ += text.size() + kEntryCost;
  }
  emit_final(sink);
  while (held_ > kMaxHeld)
    emit_front(sink);
}

/// Joins the earliest equal entry after all waiting lines of this rank. This entry has no line of the rank,
/// and the line overtakes no earlier one.
bool LineFold::join(int rank, const FoldKey& key) {
  const auto alike = alike_.find(key);
  if (alike == alike_.end()) return false;
  const auto last = last_.find(rank);
  const auto found =
      std::find_if(alike->second.begin(), alike->second.end(), [&](const Queue::iterator& entry) {
        return last == last_.end() || entry->order > last->second->order;
      });
  if (found == alike->second.end()) return false;
  (*found)->ranks.push_back(rank);
  last_[rank] = *found;
  held_ += sizeof(int);
  return true;
}

/// Returns the position of a line without an equal entry: after its rank's last line, and after one more line
/// of each other rank. If all ranks write different lines between two equal ones, the different lines stay in
/// between and the second equal line can still be joined.
LineFold::Queue::iterator LineFold::place_behind(int rank) {
  const auto last = last_.find(rank);
  auto at = last == last_.end() ? queue_.begin() : std::next(last->second);
  ++search_;
  const auto was_passed = [this](int other) {
    const auto index = static_cast<std::size_t>(other);
    if (index >= passed_.size()) passed_.resize(index + 1);
    return passed_[index] == search_;
  };
  while (at != queue_.end() && std::none_of(at->ranks.begin(), at->ranks.end(), was_passed)) {
    for (const int other : at->ranks)
      passed_[static_cast<std::size_t>(other)] = search_;
    ++at;
  }
  return at;
}

std::uint64_t LineFold::order_before(Queue::iterator behind) {
  const auto low = [&] { return behind == queue_.begin() ? 0 : std::prev(behind)->order; };
  const bool last = behind == queue_.end();
  if (last ? low() > std::numeric_limits<std::uint64_t>::max() - kGap : behind->order - low() < 2) {
    std::uint64_t order = 0;
    // No number is left between two neighbours, or at the end. Renumbering keeps the order, so the sorted
    // lists stay sorted.
    for (Entry& entry : queue_)
      entry.order = order += kGap;
  }
  if (last) return low() + kGap;
  return low() + (behind->order - low()) / 2;
}

void LineFold::tick(Time now, const Sink& sink) {
  while (!by_arrival_.empty() && now - by_arrival_.begin()->second->first >= kWindow)
    emit_front(sink);
}

void LineFold::flush(const Sink& sink) {
  while (!queue_.empty())
    emit_front(sink);
  DDP_REQUIRE(held_ == 0 && last_.empty() && alike_.empty(), held_, last_.size(), alike_.size());
}

std::optional<LineFold::Time> LineFold::deadline() const {
  if (by_arrival_.empty()) return std::nullopt;
  return by_arrival_.begin()->second->first + kWindow;
}

/// When every rank has a waiting line, none can join the front entry any more: each rank's last line is in
/// the front entry or after it.
void LineFold::emit_final(const Sink& sink) {
  while (!queue_.empty() && last_.size() >= everyone_)
    emit_front(sink);
}

void LineFold::emit_front(const Sink& sink) {
  const auto front = queue_.begin();
  Entry& entry = *front;
  std::sort(entry.ranks.begin(), entry.ranks.end());
  sink({entry.stream, entry.text, entry.ranks, entry.stamp});
  // The first rank came with the entry, each further one by join().
  const std::size_t cost = entry.text.size() + kEntryCost + (entry.ranks.size() - 1) * sizeof(int);
  DDP_REQUIRE(cost <= held_, cost, held_);
  held_ -= cost;
  for (const int rank : entry.ranks) {
    const auto last = last_.find(rank);
    if (last != last_.end() && last->second == front) last_.erase(last);
  }
  const auto alike = alike_.find(FoldKey{entry.stream, entry.text});
  DDP_REQUIRE(alike != alike_.end() && alike->second.front() == front, entry.order);
  alike->second.erase(alike->second.begin());
  // The key refers to the text of the removed entry; the next equal entry has the same text.
  auto node = alike_.extract(alike);
  if (!node.mapped().empty()) {
    node.key().text = node.mapped().front()->text;
    alike_.insert(std::move(node));
  }
  by_arrival_.erase(entry.arrival);
  queue_.pop_front();
}

FoldedOutput::FoldedOutput(const asio::any_io_executor& loop, std::string label, Emit emit)
    : template_(std::move(label)),
      emit_(std::move(emit)),
      fold_(std::numeric_limits<std::size_t>::max()),
      put_([this](const LineFold::Line& line) { put(line); }),
      timer_(loop) {}

void FoldedOutput::begin(std::size_t everyone) {
  flush();
  fold_ = LineFold(everyone);
  ranks_.clear();
}

void FoldedOutput::add(const LineSource& source, int stream, std::string_view label, std::string_view time,
                       std::string_view lines) {
  if (lines.empty()) return;
  ranks_.try_emplace(source.rank,
                     RankIdentity{std::string(source.host), source.local_rank, source.node_rank});
  // A line that stays alone keeps its rank's label; the label of a set needs only the time.
  stamp_.assign(time.empty() ? std::string(kTimeWidth, ' ') : std::string(time)).append(label);
  const LineFold::Time at = steady_now();
  while (!lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size() - 1);
    fold_.add(source.rank, static_cast<std::uint8_t>(stream), lines.substr(label.size(), end - label.size()),
              stamp_, at, put_);
    lines.remove_prefix(end + 1);
  }
  emit();
  arm();
}

void FoldedOutput::flush() {
  fold_.flush(put_);
  emit();
}

void FoldedOutput::put(const LineFold::Line& line) {
  // Both streams may go to one terminal, which must show a rank's lines in order.
  if (line.stream != out_stream_) emit();
  out_stream_ = line.stream;
  if (line.ranks.size() == 1) {
    out_ += line.stamp.substr(kTimeWidth);
  } else {
    Label label = group_label(line);
    label.stamp(line.stamp);
    out_ += label.text();
  }
  out_ += line.text;
  out_ += '\n';
}

Label FoldedOutput::group_label(const LineFold::Line& line) const {
  Label::LabelGroup group;
  std::vector<int> local_ranks;
  std::vector<int> node_ranks;
  for (const int rank : line.ranks) {
    const RankIdentity& known = ranks_.at(rank);
    if (group.hosts.empty()) group.hosts = known.host;
    if (group.hosts != known.host) group.hosts = "*";
    local_ranks.push_back(known.local_rank);
    node_ranks.push_back(known.node_rank);
  }
  group.ranks = format_number_set(line.ranks);
  group.local_ranks = format_number_set(std::move(local_ranks));
  group.node_ranks = format_number_set(std::move(node_ranks));
  group.stream = line.stream == 1 ? "stdout" : "stderr";
  return Label(template_, group);
}

void FoldedOutput::emit() {
  if (!out_.empty()) emit_(out_stream_, out_);
  out_.clear();
}

void FoldedOutput::arm() {
  if (armed_ || stopped_) return;
  const auto deadline = fold_.deadline();
  if (!deadline) return;
  armed_ = true;
  timer_.expires_at(std::chrono::steady_clock::time_point(*deadline));
  timer_.async_wait([this](const error_code& cancelled) {
    armed_ = false;
    if (cancelled) return;
    fold_.tick(steady_now(), put_);
    emit();
    arm();
  });
}

// ---- times

LineClock::Time LineClock::real() {
  return read_clock(CLOCK_REALTIME) - read_clock(CLOCK_MONOTONIC);
}

void LineClock::set_second(Time time) {
  const Time wall = time + ahead_();
  const auto whole = std::chrono::floor<seconds>(wall);
  begin_ = time - (wall - whole);
  end_ = begin_ + seconds(1);
  const auto second = static_cast<std::time_t>(whole.count());
  std::tm parts{};
  char text[64];
  ::localtime_r(&second, &parts);
  local_.fraction = std::strftime(text, sizeof text, "%H:%M:%S.", &parts);
  local_.text = std::string(text) + "000";
  ::gmtime_r(&second, &parts);
  utc_.fraction = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S.", &parts);
  utc_.text = std::string(text) + "000Z";
}

std::string_view LineClock::filled(Second& second, std::int64_t milliseconds) {
  for (std::size_t digit = 3; digit-- > 0; milliseconds /= 10)
    second.text[second.fraction + digit] = static_cast<char>('0' + milliseconds % 10);
  return second.text;
}

std::string_view LineClock::time_of_day(Time time) {
  // localtime_r takes a lock and may look at the zone file: one call a second, not one a line.
  if (time < begin_ || time >= end_) set_second(time);
  return filled(local_, duration_cast<milliseconds>(time - begin_).count());
}

std::string_view LineClock::date_and_time(Time time) {
  if (time < begin_ || time >= end_) set_second(time);
  return filled(utc_, duration_cast<milliseconds>(time - begin_).count());
}

// ---- the output of all ranks

struct MergedOutput::RankOutput {
  RankOutput(const LineSource& who, LiveBoard::Entry out, LiveBoard::Entry err)
      : source(who), streams{std::move(out), std::move(err)} {}
  LineSource source;
  std::array<LiveBoard::Entry, 2> streams;
  std::array<bool, 2> shown{true, true};
  StderrTail tail;
  bool wrote_stderr = false;
};

MergedOutput::MergedOutput(JobWriter& files, Console& console, const OutputOptions& options,
                           RankSource source, WorldSize world)
    : files_(files),
      console_(console),
      options_(options),
      source_(std::move(source)),
      world_(std::move(world)),
      board_(options.bars, {console.shows_rows(1), console.shows_rows(2)}),
      timer_(console.loop()) {
  if (options.fold) {
    fold_.emplace(console.loop(), options.label,
                  [this](int stream, std::string_view lines) { console_.add(stream, lines); });
  }
}

MergedOutput::~MergedOutput() = default;

LiveBoard::Entry MergedOutput::new_entry(std::uint32_t rank, LineSource source, int stream) const {
  source.stream = stream == 1 ? "stdout" : "stderr";
  const bool coloured =
      colours_wanted(console_.is_terminal(stream), std::getenv("NO_COLOR"), std::getenv("TERM"));
  Label label(options_.label, source, coloured ? label_colour(source.node_rank) : 0);
  LiveBoard::Entry entry(std::move(label), rank, source.node_rank, stream);
  if (!shows_bar_ends(rank, source.node_rank, stream)) entry.lines.drop_bar_ends();
  return entry;
}

/// Tells whether the last frames of the rank's bars become lines. Those of hundreds of ranks would bury the
/// other lines.
bool MergedOutput::shows_bar_ends(std::uint32_t rank, int node_rank, int stream) const {
  if (options_.bars == Bars::kAll || options_.bars == Bars::kOff) return true;
  const auto owner = bar_owners_.find({stream, options_.bars == Bars::kNode ? node_rank : 0});
  return owner == bar_owners_.end() || owner->second == rank;
}

void MergedOutput::begin_attempt(std::uint32_t attempt) {
  // Rows of the attempt before have no owner any more. Their last frames become lines before its ranks go.
  if (attempt_) finish_all();
  ranks_.clear();
  held_ = {};
  attempt_ = attempt;
  if (options_.jsonl) json_.emplace();
  const std::uint32_t world = world_();
  std::size_t selected = 0;
  bar_owners_.clear();
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    const LineSource source = source_(rank);
    if (options_.selects(rank, source.local_rank)) ++selected;
    for (const std::uint8_t stream : {1, 2}) {
      if (options_.shows(rank, source.local_rank, stream))
        bar_owners_.try_emplace({stream, options_.bars == Bars::kNode ? source.node_rank : 0}, rank);
    }
  }
  // Only ranks that are shown can have the same line, so that a line of all of them need not wait for the
  // others.
  if (fold_) fold_->begin(selected);
  if (selected != 0 || attempt != 0) return;
  console_.write(
      2, "ddplaunch: warning: no output is shown: --show-ranks and --local-ranks-filter select none of the " +
             std::to_string(world) + " ranks; the files have their output\n");
}

MergedOutput::RankOutput& MergedOutput::rank_state(std::uint32_t attempt, std::uint32_t rank) {
  if (attempt != attempt_) begin_attempt(attempt);
  if (rank >= ranks_.size()) ranks_.resize(rank + 1);
  if (!ranks_[rank]) {
    const LineSource source = source_(rank);
    ranks_[rank] =
        std::make_unique<RankOutput>(source, new_entry(rank, source, 1), new_entry(rank, source, 2));
    for (const std::uint8_t stream : {1, 2})
      ranks_[rank]->shown[stream - 1u] = options_.shows(rank, source.local_rank, stream);
  }
  return *ranks_[rank];
}

void MergedOutput::add(std::uint32_t attempt, std::uint32_t rank, std::uint8_t stream, std::string_view bytes,
                       Time written, std::shared_ptr<const char[]> memory) {
  RankOutput& state = rank_state(attempt, rank);
  if (!bytes.empty()) {
    const OutputKey key{attempt, rank, state.source.local_rank, stream};
    if (memory)
      files_.append(key, bytes, std::move(memory));
    else
      files_.append(key, bytes);
    if (stream == 2) {
      state.tail.add(bytes);
      state.wrote_stderr = true;
    }
  }
  // lines.jsonl has every rank, also those that the console does not show.
  if (json_) keep_json(state, stream, bytes, written);
  if (!state.shown[stream - 1u]) return;
  LiveBoard::Entry& entry = state.streams[stream - 1u];
  if (entry.lines.label().has_time()) entry.lines.label().stamp(clock_.time_of_day(written));
  // lines_ holds lines of one stream. Passing them on here keeps stdout and stderr in the order of arrival.
  if (entry.stream != stream_) pass_on();
  stream_ = entry.stream;
  if (bytes.empty())
    held_.finish(entry.lines, lines_);
  else
    held_.add(entry.lines, bytes, lines_);
  board_.changed(entry);
  show_rows();  // before the lines: a bar's row must not be shown twice
  show_lines(state, entry, written);
  arm();
}

/// Shows lines_, which `entry` has just produced.
void MergedOutput::show_lines(const RankOutput& state, LiveBoard::Entry& entry, Time written) {
  // Without folding, lines collect until pass_on() or until they are worth a write: many ranks with one line
  // each cost one system call.
  if (!fold_) {
    if (lines_.size() >= kMuch) pass_on();
    return;
  }
  const Label& label = entry.lines.label();
  fold_->add(state.source, entry.stream, label.text(),
             label.has_time() ? clock_.time_of_day(written) : std::string_view(), lines_);
  lines_.clear();
}

void MergedOutput::pass_on() {
  console_.hand_over(stream_, lines_);
}

void MergedOutput::flush() {
  if (fold_) fold_->flush();
}

void MergedOutput::keep_json(const RankOutput& state, std::uint8_t stream, std::string_view bytes,
                             Time written) {
  std::string objects;
  json_->add(state.source, stream, bytes, clock_.date_and_time(written), objects);
  if (!objects.empty()) files_.append({*attempt_, 0, 0, kJsonLines}, objects);
}

// ---- live rows

void MergedOutput::show_rows() {
  for (const int stream : {1, 2}) {
    if (board_.take_change(stream) && console_.shows_rows(stream)) console_.show(stream, board_.rows(stream));
  }
}

void MergedOutput::set_footer(std::string text) {
  board_.set_footer(std::move(text));
  show_rows();
}

void MergedOutput::arm() {
  if (armed_ || stopped_) return;
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
  board_.tick(steady_now(), lines);
  show_rows();
  // Lines that wait to be folded came before these.
  if (!lines[0].empty() || !lines[1].empty()) flush();
  console_.add(1, lines[0]);
  console_.add(2, lines[1]);
  arm();
}

void MergedOutput::stop_timers() {
  stopped_ = true;
  timer_.cancel();
  if (fold_) fold_->stop_timer();
}

void MergedOutput::finish_all() {
  board_.clear();
  show_rows();
  for (const auto& rank : ranks_) {
    if (!rank) continue;
    for (LiveBoard::Entry& entry : rank->streams) {
      if (json_) keep_json(*rank, static_cast<std::uint8_t>(entry.stream), {}, steady_now());
      if (entry.stream != stream_) pass_on();
      stream_ = entry.stream;
      entry.lines.finish(lines_);
      show_lines(*rank, entry, steady_now());
    }
  }
  pass_on();
  flush();
}

// ---- for the report

const MergedOutput::RankOutput* MergedOutput::find(std::uint32_t attempt, std::uint32_t rank) const {
  return attempt == attempt_ && rank < ranks_.size() ? ranks_[rank].get() : nullptr;
}

std::vector<std::string> MergedOutput::last_stderr(std::uint32_t attempt, std::uint32_t rank) const {
  const RankOutput* found = find(attempt, rank);
  return found != nullptr ? found->tail.lines() : std::vector<std::string>();
}

std::string MergedOutput::stderr_file(std::uint32_t attempt, std::uint32_t rank) const {
  const RankOutput* found = find(attempt, rank);
  return found != nullptr && found->wrote_stderr ? files_.file(attempt, rank, 2) : std::string();
}

}  // namespace ddp::launcher
