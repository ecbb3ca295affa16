#include "launcher/output/folded_output.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace ddp::launcher {

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
