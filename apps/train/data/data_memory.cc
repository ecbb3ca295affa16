#include "apps/train/data/data_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "apps/train/data/checksum.h"
#include "apps/train/data/image_size.h"

namespace ddp::train {

namespace {

constexpr std::uint64_t kMagic = 0x31617461642d7064;  // "dp-data1"
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

/// Stands at the beginning of the memory; images and labels of both parts follow.
struct DataHeader {
  std::uint64_t magic = kMagic;
  std::uint64_t nonce = 0;
  std::uint64_t source = 0;
  std::uint64_t training = 0, test = 0;  ///< images
  std::array<std::uint32_t, 4> checksums{};
};

constexpr std::uint64_t kMostImages = std::uint64_t{1} << 32;

std::size_t bytes_of(const DataHeader& head) {
  return sizeof(DataHeader) + (head.training + head.test) * (kImagePixels + 1);
}

Error foreign(const std::string& what) {
  return {ErrorCode::kProtocol, "the data of another process of this node: " + what};
}

Result<> write_whole(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return system_error(written < 0 ? errno : ENOSPC, "write into shared memory");
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

struct DataMemory::Mapping {
  const std::byte* base = nullptr;
  std::size_t size = 0;

  Mapping(const std::byte* at, std::size_t bytes) : base(at), size(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(const_cast<std::byte*>(base), size); }

  DataHeader head() const {
    DataHeader head;
    std::memcpy(&head, base, sizeof head);
    return head;
  }
};

std::uint64_t data_source(const std::string& where, std::size_t limit) {
  return fnv_hash(std::as_bytes(std::span(where)), kFnvStart ^ limit);
}

Result<std::optional<DataMemory>> DataMemory::make(const DataSplit& data, std::uint64_t source) {
  if (data.training.draw || data.test.draw) return std::optional<DataMemory>();
  UniqueFd fd(::memfd_create("ddp-train-data", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return system_error(errno, "memfd_create");
  DataHeader head;
  head.source = source;
  head.training = data.training.size();
  head.test = data.test.size();
  head.checksums = data.checksums;
  if (::getrandom(&head.nonce, sizeof head.nonce, 0) != sizeof head.nonce)
    return system_error(errno, "getrandom");
  const std::span<const std::byte> parts[] = {
      std::as_bytes(std::span(&head, 1)), std::as_bytes(data.training.images),
      std::as_bytes(data.training.labels), std::as_bytes(data.test.images), std::as_bytes(data.test.labels)};
  for (const auto& part : parts) {
    if (auto done = write_whole(fd.get(), part); !done) return done.error();
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_error(errno, "seals of the shared memory");
  auto mapped = map(std::move(fd), bytes_of(head));
  if (!mapped) return mapped.error();
  return std::optional<DataMemory>(std::move(*mapped));
}

Result<DataMemory> DataMemory::map(UniqueFd fd, std::size_t size) {
  // The mapping is private: kernels before 6.7 refuse a shared mapping of sealed memory. It is only read.
  void* base = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (base == MAP_FAILED) return system_error(errno, "mmap of the shared memory");
  return DataMemory(std::move(fd), std::make_shared<const Mapping>(static_cast<std::byte*>(base), size));
}

Result<DataMemory> DataMemory::take(const DataTicket& ticket) {
  const std::string path = "/proc/" + std::to_string(ticket.pid) + "/fd/" + std::to_string(ticket.fd);
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return system_error(errno, "open " + path);
  struct stat facts {};
  if (::fstat(fd.get(), &facts) != 0) return system_error(errno, "fstat of " + path);
  // Only a memfd has seals. These seals ensure that no process changes or truncates the mapped memory.
  if (::fcntl(fd.get(), F_GET_SEALS) != kSeals) return foreign(path + " is not sealed");
  const std::size_t size = static_cast<std::size_t>(facts.st_size);
  if (size != ticket.size || size < sizeof(DataHeader)) return foreign(path + " has another size");
  auto memory = map(std::move(fd), size);
  if (!memory) return memory;
  const DataHeader head = memory->mapping_->head();
  if (head.magic != kMagic || head.nonce != ticket.nonce || head.source != ticket.source ||
      head.training > kMostImages || head.test > kMostImages || bytes_of(head) != size)
    return foreign(path + " has other contents");
  return memory;
}

DataSplit DataMemory::data() const {
  const DataHeader head = mapping_->head();
  const auto* at = reinterpret_cast<const std::uint8_t*>(mapping_->base) + sizeof(DataHeader);
  const auto part = [&](std::size_t images) {
    Dataset data;
    data.images = {at, images * kImagePixels};
    data.labels = {at + images * kImagePixels, images};
    data.memory = mapping_;
    at += images * (kImagePixels + 1);
    return data;
  };
  Dataset training = part(head.training);
  return {std::move(training), part(head.test), head.checksums};
}

DataTicket DataMemory::ticket(std::uint64_t node) const {
  const DataHeader head = mapping_->head();
  return {node,
          static_cast<std::uint64_t>(::getpid()),
          static_cast<std::uint64_t>(fd_.get()),
          mapping_->size,
          head.nonce,
          head.source};
}

}  // namespace ddp::train
