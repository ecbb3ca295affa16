#include "launcher/output/folded_output.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/result.h"
#include "base/text.h"

namespace ddp::launcher {
namespace {

/// Bytes of an entry besides its text.
constexpr std::size_t kEntryCost = 512;
/// Distance between the orders of neighbors, so that other entries fit between them.
constexpr std::uint64_t kGap = std::uint64_t{1} << 32;

}  // namespace

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
  give();
  arm();
}

void FoldedOutput::flush() {
  fold_.flush(put_);
  give();
}

void FoldedOutput::put(const LineFold::Line& line) {
  // Both streams may go to one terminal, which must show a rank's lines in order.
  if (line.stream != out_stream_) give();
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

void FoldedOutput::give() {
  if (!out_.empty()) emit_(out_stream_, out_);
  out_.clear();
}

void FoldedOutput::arm() {
  if (armed_ || resting_) return;
  const auto deadline = fold_.deadline();
  if (!deadline) return;
  armed_ = true;
  timer_.expires_at(std::chrono::steady_clock::time_point(*deadline));
  timer_.async_wait([this](const error_code& cancelled) {
    armed_ = false;
    if (cancelled) return;
    fold_.tick(steady_now(), put_);
    give();
    arm();
  });
}

}  // namespace ddp::launcher
