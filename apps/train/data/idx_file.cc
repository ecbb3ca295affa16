#include "apps/train/data/idx_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>

#include "base/unique_fd.h"

namespace ddp::train {

namespace {

/// No gzip stream grows by more than this (zlib's "Maximum Expansion Factor").
constexpr std::uint64_t kMaxExpansion = 1032;
constexpr std::uint8_t kUnsignedBytes = 0x08;

struct CloseGzip {
  void operator()(gzFile file) const { gzclose(file); }
};

class Reader {
 public:
  static Result<Reader> open(const std::string& path) {
    // A pipe must not keep us waiting before it is refused.
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0) return system_error(errno, path);
    if (!S_ISREG(status.st_mode)) return Error{ErrorCode::kUsage, path + ": not a regular file"};
    Reader reader;
    reader.path_ = path;
    reader.file_size_ = static_cast<std::uint64_t>(status.st_size);
    reader.file_.reset(gzdopen(fd.get(), "rb"));
    if (!reader.file_) return Error{ErrorCode::kSystem, path + ": no memory to read it"};
    fd.release();  // gzclose closes it
    return reader;
  }

  Error wrong(const std::string& what) const { return Error{ErrorCode::kUsage, path_ + ": " + what}; }
  std::uint64_t file_size() const { return file_size_; }
  /// After the first read: whether the file is not compressed.
  bool plain() { return gzdirect(file_.get()) == 1; }

  /// Fewer bytes than asked for only at the end of the file.
  Result<std::size_t> read(std::span<std::uint8_t> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      const unsigned part = static_cast<unsigned>(std::min<std::size_t>(into.size() - done, 1 << 30));
      const int got = gzread(file_.get(), into.data() + done, part);
      if (got < 0) return broken();
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    int code = Z_OK;
    gzerror(file_.get(), &code);
    if (code != Z_OK && code != Z_STREAM_END) return broken();
    return done;
  }

 private:
  Error broken() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_ERRNO) return system_error(errno, path_);
    if (code == Z_BUF_ERROR) return wrong("the gzip data ends early; copy the file again");
    return wrong(std::string("broken gzip data (") + text + "); copy the file again");
  }

  std::string path_;
  std::uint64_t file_size_ = 0;
  std::unique_ptr<gzFile_s, CloseGzip> file_;
};

std::uint32_t big_endian(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

/// Magic and sizes; the error says what a right header would be.
Result<std::vector<std::uint32_t>> read_header(Reader& reader, int dimensions) {
  std::vector<std::uint8_t> header(4 + 4 * static_cast<std::size_t>(dimensions));
  const auto magic = reader.read(std::span(header).first(4));
  if (!magic) return magic.error();
  if (*magic < 4) return reader.wrong("no IDX file: shorter than its header");
  if (header[0] != 0 || header[1] != 0)
    return reader.wrong("no IDX file: it does not begin with two zero bytes");
  if (header[2] != kUnsignedBytes) {
    return reader.wrong("element type " + std::to_string(header[2]) + "; only unsigned bytes (8) are read");
  }
  if (header[3] != dimensions) {
    return reader.wrong(std::to_string(header[3]) + " dimensions instead of " + std::to_string(dimensions));
  }
  const auto got = reader.read(std::span(header).subspan(4));
  if (!got) return got.error();
  if (*got < header.size() - 4) return reader.wrong("no IDX file: shorter than its header");
  std::vector<std::uint32_t> sizes;
  for (std::size_t at = 4; at < header.size(); at += 4)
    sizes.push_back(big_endian(&header[at]));
  return sizes;
}

/// The product of the sizes; nothing where it passes `limit`.
std::optional<std::uint64_t> array_size(const std::vector<std::uint32_t>& sizes, std::uint64_t limit) {
  std::uint64_t total = 1;
  for (const std::uint32_t size : sizes) {
    if (size != 0 && total > limit / size) return std::nullopt;
    total *= size;
  }
  return total;
}

}  // namespace

Result<IdxArray> read_idx(const std::string& path, int dimensions, std::uint64_t max_bytes) {
  auto reader = Reader::open(path);
  if (!reader) return reader.error();
  auto sizes = read_header(*reader, dimensions);
  if (!sizes) return sizes.error();

  const auto total = array_size(*sizes, max_bytes);
  if (!total)
    return reader->wrong("more than " + std::to_string(max_bytes) + " bytes of data; that is the limit");
  const std::uint64_t header = 4 + 4 * static_cast<std::uint64_t>(dimensions);
  const std::uint64_t most = reader->plain() ? reader->file_size() : reader->file_size() * kMaxExpansion;
  if (header + *total > most) {
    return reader->wrong("the header promises " + std::to_string(*total) +
                         " bytes of data; the file is too short");
  }

  // One byte more than there should be: zlib compares the checksum only when it looks for what follows the
  // data.
  IdxArray array{std::move(*sizes), std::vector<std::uint8_t>(*total + 1)};
  const auto got = reader->read(array.bytes);
  if (!got) return got.error();
  if (*got < *total) {
    return reader->wrong("the header promises " + std::to_string(*total) + " bytes of data; the file has " +
                         std::to_string(*got));
  }
  if (*got > *total)
    return reader->wrong("bytes behind the " + std::to_string(*total) + " that the header promises");
  array.bytes.pop_back();
  return array;
}

}  // namespace ddp::train
