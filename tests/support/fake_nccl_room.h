#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_nccl.h"

// The shared memory in which the ranks of fake_nccl.cc meet and exchange data.

namespace ddp {

constexpr int kFakeNcclMostRanks = 160;
constexpr std::size_t kFakeNcclSlot = 1 << 20;
constexpr int kFakeNcclMostPeers = 16;  ///< ranks that send to each other
constexpr std::size_t kFakeNcclPiece = 64 << 10;

/// What one rank sends to another, a piece at a time.
struct FakeNcclMail {
  std::atomic<std::uint64_t> sent, taken;  ///< pieces
  std::size_t bytes;                       ///< of the whole message
  char data[kFakeNcclPiece];
};

/// A file that all ranks of a communicator map. It is sparse.
struct FakeNcclRoom {
  std::atomic<int> arrived;
  std::atomic<std::uint64_t> posted[kFakeNcclMostRanks], taken[kFakeNcclMostRanks];
  std::atomic<std::uint64_t> called[kFakeNcclMostRanks];  ///< the operation of the posted round
  char data[kFakeNcclMostRanks][kFakeNcclSlot];
  FakeNcclMail mail[kFakeNcclMostPeers][kFakeNcclMostPeers];  ///< from, to
};

/// One rank's slot in a room. The rank holds a file lock until leave() or destruction. The lock also ends
/// with the process, so that other ranks see which rank they lost.
class FakeNcclSlot {
 public:
  FakeNcclSlot(const std::string& path, int rank, int size) : path_(path), rank_(rank), size_(size) {
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file_ < 0 || ::ftruncate(file_, sizeof(FakeNcclRoom)) != 0) return;
    void* memory = ::mmap(nullptr, sizeof(FakeNcclRoom), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    struct flock mine = lock_of(rank);
    if (memory == MAP_FAILED || ::fcntl(file_, F_OFD_SETLK, &mine) != 0) return;
    room_ = static_cast<FakeNcclRoom*>(memory);
    ++room_->arrived;
  }
  ~FakeNcclSlot() {
    leave();
    if (room_ != nullptr) ::munmap(room_, sizeof(FakeNcclRoom));
  }
  FakeNcclSlot(const FakeNcclSlot&) = delete;
  FakeNcclSlot& operator=(const FakeNcclSlot&) = delete;

  FakeNcclRoom* room() const { return room_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool all_here() {
    if (room_->arrived < size_) return false;
    if (!unlinked_.exchange(true)) ::unlink(path_.c_str());
    return true;
  }
  void leave() {
    if (const int file = file_.exchange(-1); file >= 0) ::close(file);
  }
  bool is_lost(int rank) const {
    if (rank == rank_ || file_ < 0) return false;
    struct flock theirs = lock_of(rank);
    return ::fcntl(file_, F_OFD_GETLK, &theirs) == 0 && theirs.l_type == F_UNLCK;
  }

 private:
  static struct flock lock_of(int rank) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
  }

  std::string path_;
  int rank_;
  int size_;
  std::atomic<int> file_ = -1;
  std::atomic<bool> unlinked_ = false;
  FakeNcclRoom* room_ = nullptr;
};

/// The state that one rank's communicator shares with its pending operations.
struct FakeNcclState {
  static constexpr int kInvalidUsage = 5;

  FakeNcclState(std::string its_name, const std::string& path, int rank, int size)
      : name(std::move(its_name)), slot(path, rank, size) {}

  std::string name;
  FakeNcclSlot slot;
  std::uint64_t rounds = 0;
  int parts = 0;               ///< split-off communicators
  std::atomic<int> error = 0;  ///< error of its operations
  std::atomic<bool> ended = false;
  std::atomic<int> graphs = 0;  ///< captured operations, which hold the communicator

  /// NCCL notices a lost peer over sockets, but not over transports inside a node.
  void notice_loss(int rank) {
    const int remote_error = fake_nccl_settings()->remote_error;
    if (remote_error != 0 && slot.is_lost(rank)) error = remote_error;
  }
};

/// Makes the last byte of a piece wrong, if it is the end of something of at least as many bytes as the
/// variable says.
inline void fake_nccl_spoil_sent(const char* variable, char* piece, std::size_t size, bool is_last,
                                 std::size_t bytes) {
  const char* const least = std::getenv(variable);
  if (least != nullptr && is_last && size != 0 && bytes >= static_cast<std::size_t>(std::atoll(least)))
    piece[size - 1] ^= 0x10;
}

/// Returns whether the link to this rank of the communicator is faulty.
inline bool fake_nccl_link_is_faulty(int peer) {
  const char* const peers = std::getenv("FAKE_NCCL_SPOIL_PEERS");
  return peers != nullptr &&
         ("," + std::string(peers) + ",").find("," + std::to_string(peer) + ",") != std::string::npos;
}

/// Makes this rank slow, if that is wanted.
inline void fake_nccl_be_slow() {
  static const char* const slow = std::getenv("FAKE_NCCL_SLOW_US");
  if (slow != nullptr) std::this_thread::sleep_for(std::chrono::microseconds(std::atoi(slow)));
}

/// One operation: all ranks give `bytes` each, a piece at a time, and each rank reads what it needs. The
/// operation is polled. Each copy that has not begun can run on its own, as graphs need.
class FakeNcclExchange {
 public:
  /// Receives a rank's number, and the offset and bytes of a piece of that rank's data.
  using Read = std::function<void(int rank, std::size_t offset, const char* data, std::size_t bytes)>;
  /// `call` must be equal on all ranks, else the result is an invalid usage. `at_end` runs when all ranks
  /// have read all data.
  FakeNcclExchange(std::shared_ptr<FakeNcclState> state, std::uint64_t call, const void* mine,
                   std::size_t bytes, Read read, std::function<void()> at_end = {})
      : state_(std::move(state)),
        call_(call),
        mine_(static_cast<const char*>(mine)),
        bytes_(bytes),
        read_(std::move(read)),
        at_end_(std::move(at_end)) {}

  /// Returns whether the operation is over. A communicator that has ended releases its operations with an
  /// arbitrary result. After an error they hang until then, as on a GPU.
  bool operator()() {
    while (!state_->ended && state_->error == 0) {
      FakeNcclRoom& room = *state_->slot.room();
      if (phase_ == Phase::kPost && offset_ == 0 && is_hanging()) return false;
      if (phase_ == Phase::kPost) post(room);
      if (phase_ == Phase::kRead) {
        if (!all_are_at(room.posted)) return false;
        if (!read(room)) return false;
      }
      if (!all_are_at(room.taken)) return false;
      offset_ += piece_;
      phase_ = Phase::kPost;
      if (offset_ < bytes_) continue;
      if (at_end_) at_end_();
      return true;
    }
    return state_->ended;
  }

 private:
  enum class Phase { kPost, kRead, kLeave };

  int rank() const { return state_->slot.rank(); }

  bool is_hanging() {
    if ((call_ & 0xff) != 'r' || !fake_nccl_settings()->all_reduces_hang) return false;
    for (int other = 0; other < state_->slot.size(); ++other)
      state_->notice_loss(other);
    return true;
  }

  void post(FakeNcclRoom& room) {
    round_ = ++state_->rounds;
    piece_ = std::min(kFakeNcclSlot, bytes_ - offset_);
    if (piece_ != 0) std::memcpy(room.data[rank()], mine_ + offset_, piece_);
    const bool is_last = offset_ + piece_ == bytes_, is_all_reduce = (call_ & 0xff) == 'r';
    if (is_all_reduce && offset_ == 0) fake_nccl_be_slow();
    fake_nccl_spoil_sent("FAKE_NCCL_SPOIL_SENT", room.data[rank()], piece_, is_last, bytes_);
    if (is_all_reduce)
      fake_nccl_spoil_sent("FAKE_NCCL_SPOIL_SUM_SENT", room.data[rank()], piece_, is_last, bytes_);
    room.called[rank()] = call_;
    room.posted[rank()] = round_;
    phase_ = Phase::kRead;
  }

  bool read(FakeNcclRoom& room) {
    for (int rank = 0; rank < state_->slot.size(); ++rank) {
      if (room.called[rank] == call_) continue;
      state_->error = FakeNcclState::kInvalidUsage;
      return false;
    }
    for (int rank = 0; rank < state_->slot.size(); ++rank)
      read_(rank, offset_, room.data[rank], piece_);
    room.taken[rank()] = round_;
    phase_ = Phase::kLeave;
    return true;
  }

  bool all_are_at(const std::atomic<std::uint64_t>* rounds) {
    for (int rank = 0; rank < state_->slot.size(); ++rank) {
      if (rounds[rank] >= round_) continue;
      if (state_->slot.is_lost(rank) && rounds[rank] < round_)  // it may have done its part before
        state_->notice_loss(rank);
      // Callers poll without a pause, and the ranks that they wait for have no processor of their own.
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      return false;
    }
    return true;
  }

  std::shared_ptr<FakeNcclState> state_;
  std::uint64_t call_;
  const char* mine_;
  std::size_t bytes_;
  Read read_;
  std::function<void()> at_end_;
  Phase phase_ = Phase::kPost;
  std::uint64_t round_ = 0;
  std::size_t offset_ = 0, piece_ = 0;
};

/// The messages of one group of one rank. Polled and copied as FakeNcclExchange.
class FakeNcclMessages {
 public:
  struct Message {
    bool is_sent = false;
    int peer = 0;
    char* data = nullptr;
    std::size_t bytes = 0, done = 0;
  };
  /// `received` is called for each received message.
  FakeNcclMessages(std::shared_ptr<FakeNcclState> state, std::vector<Message> messages,
                   void (*received)(char* data, std::size_t bytes))
      : state_(std::move(state)), messages_(std::move(messages)), received_(received) {}

  bool operator()() {
    if (state_->ended || state_->error != 0) return state_->ended;
    if (!std::exchange(has_begun_, true)) fake_nccl_be_slow();
    bool is_done = true;
    for (Message& message : messages_) {
      while (message.done < message.bytes && move(message)) {
      }
      if (message.done == message.bytes) continue;
      is_done = false;
      state_->notice_loss(message.peer);
    }
    if (!is_done) std::this_thread::sleep_for(std::chrono::microseconds(50));
    return is_done;
  }

 private:
  /// Returns whether a piece was sent or received.
  bool move(Message& message) {
    const int rank = state_->slot.rank(), from = message.is_sent ? rank : message.peer;
    FakeNcclMail& mail = state_->slot.room()->mail[from][message.is_sent ? message.peer : rank];
    if (message.is_sent != (mail.sent == mail.taken)) return false;
    const std::size_t piece = std::min(kFakeNcclPiece, message.bytes - message.done);
    if (message.is_sent) {
      mail.bytes = message.bytes;
      std::memcpy(mail.data, message.data + message.done, piece);
      if (fake_nccl_link_is_faulty(message.peer)) mail.data[piece - 1] ^= 0x10;
      fake_nccl_spoil_sent("FAKE_NCCL_SPOIL_SENT", mail.data, piece, message.done + piece == message.bytes,
                           message.bytes);
    } else if (mail.bytes != message.bytes) {
      state_->error = FakeNcclState::kInvalidUsage;
      return false;
    } else {
      std::memcpy(message.data + message.done, mail.data, piece);
    }
    message.done += piece;
    ++(message.is_sent ? mail.sent : mail.taken);
    if (!message.is_sent && message.done == message.bytes) received_(message.data, message.bytes);
    return true;
  }

  std::shared_ptr<FakeNcclState> state_;
  std::vector<Message> messages_;
  void (*received_)(char* data, std::size_t bytes);
  bool has_begun_ = false;
};

}  // namespace ddp
