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

/// The largest growth of a gzip stream (zlib's "Maximum Expansion Factor").
constexpr std::uint64_t kMaxExpansion = 1032;
constexpr std::uint8_t kUnsignedBytes = 0x08;
constexpr std::uint8_t kGzipMagic[] = {0x1f, 0x8b};

struct EndInflate {
  void operator()(z_stream* stream) const {
    inflateEnd(stream);
    delete stream;
  }
};

/// Reads a plain or gzip file. zlib's own file reader ignores bytes behind the last gzip member and does not
/// know the path.
class GzipReader {
 public:
  static Result<GzipReader> open(const std::string& path) {
    GzipReader reader;
    reader.path_ = path;
    // Opening a pipe must not block before the pipe is refused.
    reader.fd_ = UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!reader.fd_ || ::fstat(reader.fd_.get(), &status) != 0) return system_error(errno, path);
    if (!S_ISREG(status.st_mode)) return Error{ErrorCode::kUsage, path + ": not a regular file"};
    reader.file_size_ = static_cast<std::uint64_t>(status.st_size);
    if (auto filled = reader.fill(); !filled) return filled.error();
    if (reader.stream_->avail_in < 2 || !std::equal(kGzipMagic, kGzipMagic + 2, reader.buffer_.begin()))
      return reader;
    constexpr int kGzip = 16;
    if (inflateInit2(reader.stream_.get(), kGzip + MAX_WBITS) != Z_OK)
      return Error{ErrorCode::kSystem, path + ": out of memory while reading"};
    reader.plain_ = false;
    return reader;
  }

  Error wrong(const std::string& what) const { return Error{ErrorCode::kUsage, path_ + ": " + what}; }
  std::uint64_t file_size() const { return file_size_; }
  bool plain() const { return plain_; }

  /// Returns fewer bytes than requested only at the end of the file.
  Result<std::size_t> read(std::span<std::uint8_t> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      if (stream_->avail_in == 0) {
        if (auto filled = fill(); !filled) return filled.error();
        if (stream_->avail_in == 0) {
          if (!plain_ && !between_members_) return wrong("the gzip data ends early; copy the file again");
          break;
        }
      }
      const auto got = plain_ ? copy(into.subspan(done)) : inflate_some(into.subspan(done));
      if (!got) return got;
      done += *got;
    }
    return done;
  }

 private:
  /// Reads the next part of the file; the buffer is empty at the end of the file.
  Result<> fill() {
    ssize_t got = 0;
    do
      got = ::read(fd_.get(), buffer_.data(), buffer_.size());
    while (got < 0 && errno == EINTR);
    if (got < 0) return system_error(errno, path_);
    stream_->next_in = buffer_.data();
    stream_->avail_in = static_cast<unsigned>(got);
    return {};
  }

  Result<std::size_t> copy(std::span<std::uint8_t> into) {
    const std::size_t size = std::min<std::size_t>(into.size(), stream_->avail_in);
    std::copy_n(stream_->next_in, size, into.data());
    stream_->next_in += size;
    stream_->avail_in -= static_cast<unsigned>(size);
    return size;
  }

  Result<std::size_t> inflate_some(std::span<std::uint8_t> into) {
    const unsigned room = static_cast<unsigned>(std::min<std::size_t>(into.size(), 1 << 30));
    stream_->next_out = into.data();
    stream_->avail_out = room;
    // Given a single byte, zlib would only report that more must follow.
    const bool begins = !between_members_ || *stream_->next_in == kGzipMagic[0];
    const int code = begins ? inflate(stream_.get(), Z_NO_FLUSH) : Z_DATA_ERROR;
    if (code == Z_STREAM_END) {
      inflateReset(stream_.get());
      between_members_ = true;
    } else if (code == Z_OK) {
      between_members_ = false;
    } else if (between_members_) {
      return wrong("extra bytes after the gzip data; copy the file again");
    } else {
      const char* text = stream_->msg != nullptr ? stream_->msg : zError(code);
      return wrong(std::string("broken gzip data (") + text + "); copy the file again");
    }
    return room - stream_->avail_out;
  }

  std::string path_;
  UniqueFd fd_;
  std::uint64_t file_size_ = 0;
  std::vector<std::uint8_t> buffer_ = std::vector<std::uint8_t>(std::size_t{1} << 16);
  std::unique_ptr<z_stream, EndInflate> stream_{new z_stream{}};  ///< on the heap: zlib keeps its address
  bool plain_ = true;
  bool between_members_ = false;  ///< a gzip file may end here
};

std::uint32_t big_endian(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

/// Reads magic and sizes; the error describes the expected header.
Result<std::vector<std::uint32_t>> read_header(GzipReader& reader, int dimensions) {
  std::vector<std::uint8_t> header(4 + 4 * static_cast<std::size_t>(dimensions));
  const auto magic = reader.read(std::span(header).first(4));
  if (!magic) return magic.error();
  if (*magic < 4) return reader.wrong("not an IDX file: shorter than its header");
  if (header[0] != 0 || header[1] != 0)
    return reader.wrong("not an IDX file: it does not begin with two zero bytes");
  if (header[2] != kUnsignedBytes) {
    return reader.wrong("element type " + std::to_string(header[2]) + "; only unsigned bytes (8) are read");
  }
  if (header[3] != dimensions) {
    return reader.wrong(std::to_string(header[3]) + " dimensions instead of " + std::to_string(dimensions));
  }
  const auto got = reader.read(std::span(header).subspan(4));
  if (!got) return got.error();
  if (*got < header.size() - 4) return reader.wrong("not an IDX file: shorter than its header");
  std::vector<std::uint32_t> sizes;
  for (std::size_t at = 4; at < header.size(); at += 4)
    sizes.push_back(big_endian(&header[at]));
  return sizes;
}

/// Returns the product of the sizes; empty if it exceeds `limit`.
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
  auto reader = GzipReader::open(path);
  if (!reader) return reader.error();
  auto sizes = read_header(*reader, dimensions);
  if (!sizes) return sizes.error();

  const auto total = array_size(*sizes, max_bytes);
  if (!total)
    return reader->wrong("more than " + std::to_string(max_bytes) + " bytes of data; that is the limit");
  const std::uint64_t header = 4 + 4 * static_cast<std::uint64_t>(dimensions);
  const std::uint64_t most = reader->plain() ? reader->file_size() : reader->file_size() * kMaxExpansion;
  if (header + *total > most) {
    return reader->wrong("the header announces " + std::to_string(*total) +
                         " bytes of data; the file is too short");
  }

  // The buffer has one byte more than the data: zlib compares the checksum when this byte is requested.
  IdxArray array{std::move(*sizes), std::vector<std::uint8_t>(*total + 1)};
  const auto got = reader->read(array.bytes);
  if (!got) return got.error();
  if (*got < *total) {
    return reader->wrong("the header announces " + std::to_string(*total) + " bytes of data; the file has " +
                         std::to_string(*got));
  }
  if (*got > *total)
    return reader->wrong("extra bytes after the " + std::to_string(*total) +
                         " bytes that the header announces");
  array.bytes.pop_back();
  return array;
}

}  // namespace ddp::train
