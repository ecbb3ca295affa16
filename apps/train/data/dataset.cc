#include "apps/train/data/dataset.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "apps/train/data/hash.h"
#include "base/files.h"
#include "base/text.h"

namespace ddp::train {

std::uint32_t crc32_of(std::span<const std::byte> bytes, std::uint32_t state) {
  return static_cast<std::uint32_t>(
      ::crc32_z(state, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string crc32_text(std::uint32_t crc) {
  return format_text("%08x", static_cast<unsigned>(crc));
}

namespace {

constexpr std::uint64_t kMaxImages = 1'000'000;

/// Returns the plain file if it exists, else the .gz.
Result<std::string> find_file(const std::string& directory, const std::string& name) {
  const std::string plain = directory + "/" + name;
  std::error_code ignored;
  for (const std::string& path : {plain, plain + ".gz"}) {
    if (std::filesystem::exists(path, ignored)) return path;
  }
  return usage_error(plain,
                     ": no such file, neither plain nor .gz; give a directory with the four "
                     "MNIST files by --data (Debian's package dataset-fashion-mnist brings "
                     "them), or --data synthetic");
}

Result<Dataset> load_part(const std::string& directory, const std::string& part) {
  const auto images_path = DDP_TRY(find_file(directory, part + "-images-idx3-ubyte"));
  const auto labels_path = DDP_TRY(find_file(directory, part + "-labels-idx1-ubyte"));
  auto images = DDP_TRY(read_idx(images_path, 3, kMaxImages * kImagePixels));
  auto labels = DDP_TRY(read_idx(labels_path, 1, kMaxImages));

  const auto wrong = [](const std::string& path, const auto&... what) {
    return usage_error(path, ": ", what...);
  };
  if (images.sizes[1] != kImageSide || images.sizes[2] != kImageSide) {
    return wrong(images_path, "images of ", images.sizes[1], " x ", images.sizes[2],
                 " pixels; the model takes 28 x 28");
  }
  if (images.sizes[0] == 0) return wrong(images_path, "holds no image");
  if (images.sizes[0] != labels.sizes[0]) {
    return wrong(labels_path, labels.sizes[0], " labels for ", images.sizes[0], " images");
  }
  const auto bad =
      std::find_if(labels.bytes.begin(), labels.bytes.end(), [](auto l) { return l >= kClasses; });
  if (bad != labels.bytes.end()) {
    return wrong(labels_path, "label ", *bad, " of image ", bad - labels.bytes.begin(), " is not 0 to 9");
  }
  return Dataset::of(std::move(images.bytes), std::move(labels.bytes));
}

Result<DataSplit> load_files(const std::string& directory, std::size_t limit) {
  auto training = DDP_TRY(load_part(directory, "train"));
  auto test = DDP_TRY(load_part(directory, "t10k"));
  if (limit != 0 && limit < training.size()) {
    training.images = training.images.first(limit * kImagePixels);
    training.labels = training.labels.first(limit);
  }
  return DataSplit{std::move(training), std::move(test)};
}

}  // namespace

Dataset Dataset::of(std::vector<std::uint8_t> images, std::vector<std::uint8_t> labels) {
  struct Memory {
    std::vector<std::uint8_t> images, labels;
  };
  auto memory = std::make_shared<const Memory>(std::move(images), std::move(labels));
  Dataset data;
  data.images = memory->images;
  data.labels = memory->labels;
  data.memory = std::move(memory);
  return data;
}

bool has_data_files(const std::string& directory) {
  for (const char* name : {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte",
                           "t10k-labels-idx1-ubyte"}) {
    if (find_file(directory, name)) return true;
  }
  return false;
}

Result<DataSplit> load_data(const std::string& where, std::size_t limit) {
  auto data = where == "synthetic" ? Result<DataSplit>(synthetic_data(limit)) : load_files(where, limit);
  if (!data) return data;
  const auto of = [](std::span<const std::uint8_t> bytes) { return crc32_of(std::as_bytes(bytes)); };
  data->checksums = {of(data->training.images), of(data->training.labels), of(data->test.images),
                     of(data->test.labels)};
  return data;
}

template <class T>
void fill_batch(const Dataset& data, std::span<const std::uint32_t> samples, int border, T* images,
                std::span<std::uint8_t> labels) {
  const int side = kImageSide + 2 * border;
  std::fill_n(images, samples.size() * static_cast<std::size_t>(side) * side, T{});
  std::array<std::uint8_t, kImagePixels> drawn;
  for (std::size_t n = 0; n < samples.size(); ++n) {
    const std::uint8_t* image = drawn.data();
    if (data.draw) {
      labels[n] = data.draw(samples[n], drawn.data());
    } else {
      labels[n] = data.labels[samples[n]];
      image = data.images.data() + std::size_t{samples[n]} * kImagePixels;
    }
    T* to = images + n * static_cast<std::size_t>(side) * side + border * side + border;
    for (int y = 0; y < kImageSide; ++y) {
      for (int x = 0; x < kImageSide; ++x)
        to[y * side + x] = static_cast<T>(image[y * kImageSide + x]) / T(255);
    }
  }
}

template void fill_batch<float>(const Dataset&, std::span<const std::uint32_t>, int, float*,
                                std::span<std::uint8_t>);
template void fill_batch<double>(const Dataset&, std::span<const std::uint32_t>, int, double*,
                                 std::span<std::uint8_t>);

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
    if (!S_ISREG(status.st_mode)) return usage_error(path, ": not a regular file");
    reader.file_size_ = static_cast<std::uint64_t>(status.st_size);
    DDP_TRY(reader.fill());
    if (reader.stream_->avail_in < 2 || !std::equal(kGzipMagic, kGzipMagic + 2, reader.buffer_.begin()))
      return reader;
    constexpr int kGzip = 16;
    if (inflateInit2(reader.stream_.get(), kGzip + MAX_WBITS) != Z_OK)
      return error_of(ErrorCode::kSystem, path, ": out of memory while reading");
    reader.plain_ = false;
    return reader;
  }

  template <class... Parts>
  Error wrong(const Parts&... what) const {
    return usage_error(path_, ": ", what...);
  }
  std::uint64_t file_size() const { return file_size_; }
  bool plain() const { return plain_; }

  /// Returns fewer bytes than requested only at the end of the file.
  Result<std::size_t> read(std::span<std::uint8_t> into) {
    std::size_t done = 0;
    while (done < into.size()) {
      if (stream_->avail_in == 0) {
        DDP_TRY(fill());
        if (stream_->avail_in == 0) {
          if (!plain_ && !between_members_) return wrong("the gzip data ends early; copy the file again");
          break;
        }
      }
      const auto got = DDP_TRY(plain_ ? copy(into.subspan(done)) : inflate_some(into.subspan(done)));
      done += got;
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
      return wrong("broken gzip data (", text, "); copy the file again");
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
  const auto magic = DDP_TRY(reader.read(std::span(header).first(4)));
  if (magic < 4) return reader.wrong("not an IDX file: shorter than its header");
  if (header[0] != 0 || header[1] != 0)
    return reader.wrong("not an IDX file: it does not begin with two zero bytes");
  if (header[2] != kUnsignedBytes) {
    return reader.wrong("element type ", header[2], "; only unsigned bytes (8) are read");
  }
  if (header[3] != dimensions) {
    return reader.wrong(header[3], " dimensions instead of ", dimensions);
  }
  const auto got = DDP_TRY(reader.read(std::span(header).subspan(4)));
  if (got < header.size() - 4) return reader.wrong("not an IDX file: shorter than its header");
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
  auto reader = DDP_TRY(GzipReader::open(path));
  auto sizes = DDP_TRY(read_header(reader, dimensions));

  const auto total = array_size(sizes, max_bytes);
  if (!total) return reader.wrong("more than ", max_bytes, " bytes of data; that is the limit");
  const std::uint64_t header = 4 + 4 * static_cast<std::uint64_t>(dimensions);
  const std::uint64_t most = reader.plain() ? reader.file_size() : reader.file_size() * kMaxExpansion;
  if (header + *total > most) {
    return reader.wrong("the header announces ", *total, " bytes of data; the file is too short");
  }

  // The buffer has one byte more than the data: zlib compares the checksum when this byte is requested.
  IdxArray array{std::move(sizes), std::vector<std::uint8_t>(*total + 1)};
  const auto got = DDP_TRY(reader.read(array.bytes));
  if (got < *total) {
    return reader.wrong("the header announces ", *total, " bytes of data; the file has ", got);
  }
  if (got > *total) return reader.wrong("extra bytes after the ", *total, " bytes that the header announces");
  array.bytes.pop_back();
  return array;
}

namespace {

constexpr std::uint64_t kSeed = 20'170'825;  // seed of the data set: --seed changes training, not the data
constexpr std::size_t kTrainingImages = 60'000;
constexpr std::size_t kTestImages = 10'000;
constexpr std::size_t kFewestTestImages = 200;
constexpr std::size_t kMaxStored = 60'000;
constexpr int kCells = 7;  // a prototype is 7 x 7 random cells, drawn as 4 x 4 pixels each
constexpr int kCellSide = kImageSide / kCells;
constexpr int kMaxShift = 2;

/// Streams of the generator. Test images must not repeat training images.
enum GeneratorStream : std::uint64_t { kPrototype = 1, kTrainingStream = 2, kTestStream = 3 };

using Prototype = std::array<std::uint8_t, kImagePixels>;

std::array<Prototype, kClasses> make_prototypes() {
  std::array<Prototype, kClasses> prototypes;
  for (int label = 0; label < kClasses; ++label) {
    for (int pixel = 0; pixel < kImagePixels; ++pixel) {
      const int cell = pixel / kImageSide / kCellSide * kCells + pixel % kImageSide / kCellSide;
      prototypes[label][pixel] =
          random_bits(kSeed, kPrototype, label * kCells * kCells + cell) & 1 ? 200 : 30;
    }
  }
  return prototypes;
}

/// Draws pixel (x, y) from the prototype, shifted by up to two pixels, plus noise of ± 128, clamped to a
/// byte.
void draw(const Prototype& prototype, std::uint64_t bits, std::uint8_t* image) {
  const int shift_x = static_cast<int>(bits >> 8 & 0xff) % (2 * kMaxShift + 1) - kMaxShift;
  const int shift_y = static_cast<int>(bits >> 16 & 0xff) % (2 * kMaxShift + 1) - kMaxShift;
  std::uint64_t noise = 0;
  for (int pixel = 0; pixel < kImagePixels; ++pixel) {
    if (pixel % 8 == 0) noise = random_bits(bits, 0, pixel / 8);
    const int x = std::clamp(pixel % kImageSide + shift_x, 0, kImageSide - 1);
    const int y = std::clamp(pixel / kImageSide + shift_y, 0, kImageSide - 1);
    const int value = prototype[y * kImageSide + x] + static_cast<int>(noise & 0xff) - 128;
    image[pixel] = static_cast<std::uint8_t>(std::clamp(value, 0, 255));
    noise >>= 8;
  }
}

DrawImage drawer(const std::array<Prototype, kClasses>& prototypes, std::uint64_t stream) {
  return [prototypes, stream](std::size_t number, std::uint8_t* image) {
    const std::uint64_t bits = random_bits(kSeed, stream, number);
    const std::uint8_t label = static_cast<std::uint8_t>((bits >> 32) % kClasses);
    draw(prototypes[label], bits, image);
    return label;
  };
}

Dataset make_part(DrawImage draw_image, std::size_t count) {
  if (count > kMaxStored) return {{}, {}, std::move(draw_image), count, nullptr};
  std::vector<std::uint8_t> images(count * kImagePixels);
  std::vector<std::uint8_t> labels(count);
  for (std::size_t i = 0; i < count; ++i)
    labels[i] = draw_image(i, images.data() + i * kImagePixels);
  return Dataset::of(std::move(images), std::move(labels));
}

}  // namespace

DataSplit synthetic_data(std::size_t limit) {
  const auto prototypes = make_prototypes();
  const std::size_t training = limit == 0 ? kTrainingImages : limit;
  return {make_part(drawer(prototypes, kTrainingStream), training),
          make_part(drawer(prototypes, kTestStream),
                    std::min(kTestImages, std::max<std::size_t>(training, kFewestTestImages)))};
}

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

std::size_t size_of(const DataHeader& head) {
  return sizeof(DataHeader) + (head.training + head.test) * (kImagePixels + 1);
}

DataHeader head_of(const MappedBytes& memory) {
  DataHeader head;
  std::memcpy(&head, memory.get(), sizeof head);
  return head;
}

Error foreign(const std::string& what) {
  return error_of(ErrorCode::kProtocol, "the data of another process of this node: ", what);
}

}  // namespace

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
  for (const auto& part : parts)
    DDP_TRY(write_bytes(fd.get(), {reinterpret_cast<const char*>(part.data()), part.size()},
                        "into shared memory"));
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return system_error(errno, "seals of the shared memory");
  auto mapped = DDP_TRY(map(std::move(fd), size_of(head)));
  return std::optional<DataMemory>(std::move(mapped));
}

Result<DataMemory> DataMemory::map(UniqueFd fd, std::size_t size) {
  // The mapping is private: kernels before 6.7 refuse a shared mapping of sealed memory. It is only read.
  auto mapped = map_file(fd.get(), size, PROT_READ, MAP_PRIVATE);
  if (!mapped) return system_error(errno, "mmap of the shared memory");
  return DataMemory(std::move(fd), std::make_shared<const MappedBytes>(std::move(mapped)));
}

Result<DataMemory> DataMemory::open(const DataTicket& ticket) {
  const std::string path = concat("/proc/", ticket.pid, "/fd/", ticket.fd);
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
  const DataHeader head = head_of(*memory->mapping_);
  if (head.magic != kMagic || head.nonce != ticket.nonce || head.source != ticket.source ||
      head.training > kMostImages || head.test > kMostImages || size_of(head) != size)
    return foreign(path + " has other contents");
  return memory;
}

DataSplit DataMemory::data() const {
  const DataHeader head = head_of(*mapping_);
  const auto* at = reinterpret_cast<const std::uint8_t*>(mapping_->get()) + sizeof(DataHeader);
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
  const DataHeader head = head_of(*mapping_);
  return {node,
          static_cast<std::uint64_t>(::getpid()),
          static_cast<std::uint64_t>(fd_.get()),
          span_of(*mapping_).size(),
          head.nonce,
          head.source};
}

}  // namespace ddp::train
