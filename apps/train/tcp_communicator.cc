#include "apps/train/tcp_communicator.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <utility>

#include "apps/train/little_endian.h"
#include "apps/train/tcp_socket.h"

namespace ddp::train {

namespace {

constexpr std::size_t kHeaderSize = 16;
using Header = std::array<std::byte, kHeaderSize>;

Header make_header(std::uint32_t operation, std::uint32_t kind, std::size_t size) {
  Header header;
  std::byte* at = put_little_endian(header.data(), operation);
  at = put_little_endian(at, kind);
  put_little_endian(at, static_cast<std::uint64_t>(size));
  return header;
}

/// The rest of header and payload after `done` bytes.
int rest_of(std::span<std::byte> header, std::span<std::byte> payload, std::size_t done, iovec parts[2]) {
  int count = 0;
  if (done < header.size()) parts[count++] = {header.data() + done, header.size() - done};
  const std::size_t paid = done > header.size() ? done - header.size() : 0;
  if (paid < payload.size()) parts[count++] = {payload.data() + paid, payload.size() - paid};
  return count;
}

/// recvmsg or sendmsg over header and payload.
ssize_t transfer(int fd, bool sending, std::span<std::byte> header, std::span<std::byte> payload,
                 std::size_t done) {
  iovec parts[2];
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = static_cast<std::size_t>(rest_of(header, payload, done, parts));
  return sending ? ::sendmsg(fd, &message, MSG_NOSIGNAL) : ::recvmsg(fd, &message, 0);
}

}  // namespace

struct TcpCommunicator::Outgoing {
  Header header{};
  std::span<std::byte> payload;
  std::size_t done = 0;
  std::size_t total = 0;
  bool complete() const { return done == total; }
};

struct TcpCommunicator::Incoming {
  Header expected{};
  Header header{};
  std::span<std::byte> payload;
  std::size_t done = 0;
  std::size_t total = 0;
  bool complete() const { return done == total; }
};

TcpCommunicator::TcpCommunicator(int rank, int world_size, RingPeer next, RingPeer previous,
                                 std::chrono::milliseconds step_timeout, int interrupt)
    : rank_(rank),
      world_size_(world_size),
      next_(std::move(next)),
      previous_(std::move(previous)),
      step_timeout_(step_timeout),
      interrupt_(interrupt) {}

TcpCommunicator::~TcpCommunicator() {
  const char goodbye = 'g';
  // The previous rank may be gone already, and nothing is to be done about it.
  if (!failed_) ::send(previous_.fd.get(), &goodbye, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::string_view TcpCommunicator::kind_text(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "all-reduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllGather:
      return "all-gather";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kLost:
      break;
  }
  return "?";
}

/// A last word that comes in pieces is none: five bytes are never split in practice, and only the naming
/// would suffer.
void TcpCommunicator::read_last_word() {
  std::array<std::byte, 5> word{};
  const ssize_t got = ::recv(next_.fd.get(), word.data(), word.size(), MSG_DONTWAIT);
  if (got == 1 && word[0] == std::byte{'g'}) next_said_goodbye_ = true;
  if (got != static_cast<ssize_t>(word.size()) || word[0] != std::byte{'f'}) return;
  std::uint32_t rank = 0;
  take_little_endian(word.data() + 1, rank);
  reported_lost_ = static_cast<int>(rank);
  reporter_ = next_.rank;
}

void TcpCommunicator::tell_neighbours(int lost_rank) {
  // Neighbours may be gone already, and full buffers are not waited for: what fails here costs only a good
  // name.
  std::array<std::byte, 5> word{std::byte{'f'}};
  put_little_endian(word.data() + 1, static_cast<std::uint32_t>(lost_rank));
  ::send(previous_.fd.get(), word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (mid_message_) return;
  const Header header =
      make_header(operation_, static_cast<std::uint32_t>(Kind::kLost), static_cast<std::size_t>(lost_rank));
  ::send(next_.fd.get(), header.data(), header.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Error TcpCommunicator::fail(Error error) {
  failed_ = error;
  return error;
}

Error TcpCommunicator::lost(const RingPeer& peer, Kind kind, std::string_view reason, ErrorCode code) {
  if (reported_lost_ < 0) read_last_word();
  const bool reported = reported_lost_ >= 0 && reported_lost_ != rank_;
  const int rank = reported ? reported_lost_ : peer.rank;
  tell_neighbours(rank);
  std::string text = "rank " + std::to_string(rank_) + " lost rank " + std::to_string(rank) + " (";
  if (rank == next_.rank || rank == previous_.rank) {
    text += (rank == next_.rank ? next_ : previous_).address + "): " + std::string(reason);
  } else {
    text += "reported by rank " + std::to_string(reporter_) + "): connection lost";
  }
  return fail({code, text + " during " + std::string(kind_text(kind))});
}

Result<bool> TcpCommunicator::send_some(Kind kind, Outgoing& out) {
  if (out.complete()) return false;
  const ssize_t sent = transfer(next_.fd.get(), true, out.header, out.payload, out.done);
  if (sent >= 0) {
    out.done += static_cast<std::size_t>(sent);
    mid_message_ = out.done != 0 && !out.complete();
    return true;
  }
  if (errno == EAGAIN || errno == EINTR) return false;
  return lost(next_, kind, connection_error(errno).text);
}

Result<bool> TcpCommunicator::receive_some(Kind kind, Incoming& in) {
  if (in.complete()) return false;
  const ssize_t got = transfer(previous_.fd.get(), false, in.header, in.payload, in.done);
  if (got == 0) return lost(previous_, kind, connection_closed().text);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return false;
    return lost(previous_, kind, connection_error(errno).text);
  }
  in.done += static_cast<std::size_t>(got);
  if (in.done >= kHeaderSize && in.header != in.expected) {
    std::uint32_t told_kind = 0;
    std::uint64_t number = 0;
    take_little_endian(take_little_endian(in.header.data() + 4, told_kind), number);
    if (told_kind == static_cast<std::uint32_t>(Kind::kLost)) {
      reported_lost_ = static_cast<int>(number);
      reporter_ = previous_.rank;
      return lost(previous_, kind, connection_closed().text);
    }
    return lost(previous_, kind, "it is at another operation (were all ranks started with the same options?)",
                ErrorCode::kProtocol);
  }
  return true;
}

/// The next rank's connection has something to say, or has ended.
Result<> TcpCommunicator::hear_next(Kind kind) {
  read_last_word();
  if (next_said_goodbye_) return {};
  if (reported_lost_ >= 0) return lost(next_, kind, connection_closed().text);
  char byte = 0;
  const ssize_t got = ::recv(next_.fd.get(), &byte, 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return {};
  return lost(next_, kind, got < 0 ? connection_error(errno).text : connection_closed().text);
}

/// True when something may be possible now; false after step_timeout without any event.
Result<bool> TcpCommunicator::wait(Kind kind, const Outgoing& out, const Incoming& in) {
  const Deadline deadline = std::chrono::steady_clock::now() + step_timeout_;
  while (true) {
    const short next_events =
        static_cast<short>((out.complete() ? 0 : POLLOUT) | (next_said_goodbye_ ? 0 : POLLIN));
    pollfd slots[] = {{interrupt_, POLLIN, 0},
                      {next_events ? next_.fd.get() : -1, next_events, 0},
                      {in.complete() ? -1 : previous_.fd.get(), POLLIN, 0}};
    const int ready = ::poll(slots, std::size(slots), milliseconds_left(deadline));
    if (ready < 0 && errno != EINTR) return fail(system_error(errno, "poll"));
    if (ready == 0 && milliseconds_left(deadline) == 0) return false;
    if (ready <= 0) continue;
    if (slots[0].revents != 0) {
      return fail({ErrorCode::kCancelled,
                   "rank " + std::to_string(rank_) + " was revoked during " + std::string(kind_text(kind))});
    }
    // What the previous rank has sent comes first: it may be all that this operation still needs.
    if (slots[2].revents == 0 && (slots[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0 &&
        !next_said_goodbye_) {
      if (auto heard = hear_next(kind); !heard) return heard.error();
      if (slots[1].revents == POLLIN) continue;
    }
    return true;
  }
}

Result<> TcpCommunicator::pump(Kind kind, Outgoing& out, Incoming& in) {
  while (!out.complete() || !in.complete()) {
    const auto sent = send_some(kind, out);
    if (!sent) return sent.error();
    const auto received = receive_some(kind, in);
    if (!received) return received.error();
    if (*sent || *received) continue;
    const auto ready = wait(kind, out, in);
    if (!ready) return ready.error();
    if (!*ready) {
      // Who keeps us waiting: the one that does not send, else the one that does not take.
      const RingPeer& peer = in.complete() ? next_ : previous_;
      const auto time = std::chrono::duration<double>(step_timeout_).count();
      char text[64];
      std::snprintf(text, sizeof text, "%s for %g s", in.complete() ? "it takes no data" : "no data", time);
      return lost(peer, kind, text, ErrorCode::kTimeout);
    }
  }
  return {};
}

Result<> TcpCommunicator::exchange(Kind kind, const std::span<const std::byte>* out,
                                   const std::span<std::byte>* in) {
  if (failed_) return *failed_;
  Outgoing outgoing;
  if (out) {
    outgoing.header = make_header(operation_, static_cast<std::uint32_t>(kind), out->size());
    outgoing.payload = {const_cast<std::byte*>(out->data()),
                        out->size()};  // iovec knows no const; only read from
    outgoing.total = kHeaderSize + out->size();
  }
  Incoming incoming;
  if (in) {
    incoming.expected = make_header(operation_, static_cast<std::uint32_t>(kind), in->size());
    incoming.payload = *in;
    incoming.total = kHeaderSize + in->size();
  }
  return pump(kind, outgoing, incoming);
}

std::span<std::byte> TcpCommunicator::scratch(std::size_t size) {
  if (scratch_.size() < size) scratch_ = AlignedBuffer<std::byte>(size);
  return scratch_.span().first(size);
}

template <class T>
Result<> TcpCommunicator::reduce(std::span<T> values) {
  ++operation_;
  const auto part = [&](int number) {
    const RingPart at = ring_part(values.size(), world_size_, number);
    return values.subspan(at.begin, at.size);
  };
  for (const RingStep& step : ring_all_reduce(rank_, world_size_)) {
    const std::span<const std::byte> out = std::as_bytes(part(step.send));
    const std::span<T> mine = part(step.receive);
    const std::span<std::byte> in = step.add ? scratch(mine.size_bytes()) : std::as_writable_bytes(mine);
    if (auto done = exchange(Kind::kAllReduce, &out, &in); !done) return done.error();
    if (!step.add) continue;
    const T* received = reinterpret_cast<const T*>(in.data());
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] += received[i];
  }
  return {};
}

Result<> TcpCommunicator::all_reduce_sum(std::span<float> values) {
  return reduce(values);
}
Result<> TcpCommunicator::all_reduce_sum(std::span<double> values) {
  return reduce(values);
}

Result<> TcpCommunicator::broadcast(std::span<std::byte> data, int root) {
  ++operation_;
  const std::span<const std::byte> out = data;
  for (const RingStep& step : ring_broadcast(rank_, world_size_, root)) {
    auto done = exchange(Kind::kBroadcast, step.send == RingStep::kNothing ? nullptr : &out,
                         step.receive == RingStep::kNothing ? nullptr : &data);
    if (!done) return done.error();
  }
  return {};
}

Result<std::vector<std::uint64_t>> TcpCommunicator::gather(std::span<const std::uint64_t> mine, Kind kind) {
  ++operation_;
  const std::size_t width = mine.size() * sizeof(std::uint64_t);
  std::vector<std::byte> wire(width * static_cast<std::size_t>(world_size_));
  const auto part = [&](int rank) {
    return std::span(wire).subspan(static_cast<std::size_t>(rank) * width, width);
  };
  std::byte* at = part(rank_).data();
  for (const std::uint64_t value : mine)
    at = put_little_endian(at, value);
  for (const RingStep& step : ring_all_gather(rank_, world_size_)) {
    const std::span<const std::byte> out = part(step.send);
    const std::span<std::byte> in = part(step.receive);
    if (auto done = exchange(kind, &out, &in); !done) return done.error();
  }
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(world_size_));
  const std::byte* from = wire.data();
  for (std::uint64_t& value : all)
    from = take_little_endian(from, value);
  return all;
}

Result<std::vector<std::uint64_t>> TcpCommunicator::all_gather(std::span<const std::uint64_t> mine) {
  return gather(mine, Kind::kAllGather);
}

Result<> TcpCommunicator::barrier() {
  // The last step's message left its sender after all others were heard of there or further up the ring.
  auto all = gather({}, Kind::kBarrier);
  if (!all) return all.error();
  return {};
}

}  // namespace ddp::train
