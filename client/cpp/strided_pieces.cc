#include "client/cpp/strided_pieces.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>

#include "common/checksum.h"
#include "common/copy.h"
#include "common/keys.h"

namespace cairn::client {
namespace {

// Shorter runs stay in the cache: the caller's next step often reads them.
constexpr uint64_t kWorthStreaming = 64 << 10;

// Of a transposed tensor: an element's bytes, and how many columns are copied at a time: so many lines, also 4 KiB apart,
// fit any first-level cache at once.
constexpr uint64_t kMostElement = 16;
constexpr uint64_t kTile = 8;

// Of what is copied aside before it is summed: it stays in the first-level cache.
constexpr uint64_t kScratchAtOnce = 16 << 10;

// Runs that long need not be copied aside first: so much of the object is summed and then copied at a time, within the
// first-level cache, as common/copy.h does.
constexpr uint64_t kLongRun = 1 << 10;
constexpr uint64_t kPart = 8 << 10;

constexpr uint64_t kMostReach = std::numeric_limits<int64_t>::max();

Status Bad(size_t number, absl::string_view field, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("piece ", number, ": ", field, ": ", what));
}

// steps × |stride|; false: more than kMostReach.
bool Reach(uint64_t steps, int64_t stride, uint64_t* reach) {
  const uint64_t size = stride < 0 ? -static_cast<uint64_t>(stride) : static_cast<uint64_t>(stride);
  return !__builtin_mul_overflow(steps, size, reach) && *reach <= kMostReach;
}

Status CheckFields(const StridedPiece& piece, size_t number, uint64_t length) {
  const size_t rank = piece.shape.size();
  if (piece.item_bytes == 0) return Bad(number, "item_bytes", "is 0");
  if (piece.from_strides.size() != rank) {
    return Bad(number, "from_strides",
               absl::StrCat(piece.from_strides.size(), " for ", rank, " dimensions"));
  }
  if (piece.into_strides.size() != rank) {
    return Bad(number, "into_strides",
               absl::StrCat(piece.into_strides.size(), " for ", rank, " dimensions"));
  }
  if (piece.offset > length) {
    return Bad(number, "offset", absl::StrCat(piece.offset, " of ", length, " bytes"));
  }
  for (size_t d = 0; d < rank; ++d) {
    if (piece.shape[d] < 0) {
      return Bad(number, "shape", absl::StrCat(piece.shape[d], " in dimension ", d));
    }
  }
  return absl::OkStatus();
}

template <typename Element>
void CopyElements(uint64_t count, const char* from, uint64_t from_stride, char* into,
                  int64_t into_stride) {
  for (uint64_t i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, from, sizeof(element));
    std::memcpy(into, &element, sizeof(element));
    from += from_stride;
    into += into_stride;
  }
}

struct Sixteen {
  uint64_t words[2];
};

// `count` runs of `run` bytes each.
void CopyRuns(uint64_t count, uint64_t run, const char* from, uint64_t from_stride, char* into,
              int64_t into_stride) {
  switch (run) {
    case 1:
      return CopyElements<uint8_t>(count, from, from_stride, into, into_stride);
    case 2:
      return CopyElements<uint16_t>(count, from, from_stride, into, into_stride);
    case 4:
      return CopyElements<uint32_t>(count, from, from_stride, into, into_stride);
    case 8:
      return CopyElements<uint64_t>(count, from, from_stride, into, into_stride);
    case 16:
      return CopyElements<Sixteen>(count, from, from_stride, into, into_stride);
    default:
      break;
  }
  for (uint64_t i = 0; i < count; ++i) {
    if (run >= kWorthStreaming) {
      StreamCopy(into, from, run);
    } else {
      std::memcpy(into, from, run);
    }
    from += from_stride;
    into += into_stride;
  }
}

}  // namespace

// --- making

StatusOr<StridedPieces> StridedPieces::Make(absl::Span<const StridedPiece> pieces,
                                            uint64_t length) {
  if (pieces.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError("more than 2^32 pieces");
  }
  StridedPieces made;
  made.pieces_.reserve(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(made.Add(pieces[i], i, length));
  }
  made.SortIntoBlocks();
  return made;
}

Status StridedPieces::Add(const StridedPiece& piece, size_t number, uint64_t length) {
  CAIRN_RETURN_IF_ERROR(CheckFields(piece, number, length));
  if (std::count(piece.shape.begin(), piece.shape.end(), 0) > 0) return absl::OkStatus();
  if (piece.into == nullptr) return Bad(number, "into", "no address");
  const size_t first_dim = dims_.size();
  Piece made;
  made.begin = piece.offset;
  made.into = static_cast<char*>(piece.into);
  CAIRN_RETURN_IF_ERROR(AddDims(piece, number, length, &made));
  JoinDims(first_dim);
  made.run = piece.item_bytes;
  if (dims_.size() > first_dim && dims_.back().from == made.run &&
      dims_.back().into == static_cast<int64_t>(made.run)) {
    made.run *= dims_.back().count;
    dims_.pop_back();
  }
  uint64_t span = made.run;
  for (size_t d = dims_.size(); d-- > first_dim;) {
    dims_[d].span = span;
    span += (dims_[d].count - 1) * dims_[d].from;
  }
  made.end = made.begin + span;
  made.first_dim = first_dim;
  made.dims = dims_.size() - first_dim;
  pieces_.push_back(made);
  return absl::OkStatus();
}

// Adds the dimensions of more than one step. One that goes down in the object is turned round on both sides: `made`
// then begins at what was its other end.
Status StridedPieces::AddDims(const StridedPiece& piece, size_t number, uint64_t length,
                              Piece* made) {
  uint64_t before = 0, after = 0;  // bytes of the object on either side of the element of index 0
  uint64_t reached = 0;            // of memory, in all
  auto into = reinterpret_cast<uintptr_t>(piece.into);
  for (size_t d = 0; d < piece.shape.size(); ++d) {
    if (piece.shape[d] == 1) continue;
    const auto steps = static_cast<uint64_t>(piece.shape[d]) - 1;
    uint64_t from_reach = 0, into_reach = 0;
    if (!Reach(steps, piece.from_strides[d], &from_reach) || from_reach > length) {
      return Bad(number, "from_strides",
                 absl::StrCat(piece.shape[d], " × ", piece.from_strides[d], " in dimension ", d,
                              " leaves the object's ", length, " bytes"));
    }
    if (!Reach(steps, piece.into_strides[d], &into_reach) ||
        __builtin_add_overflow(reached, into_reach, &reached) || reached > kMostReach) {
      return Bad(number, "into_strides",
                 absl::StrCat(piece.shape[d], " × ", piece.into_strides[d], " in dimension ", d,
                              " is more than there are addresses"));
    }
    Dim dim = {steps + 1, static_cast<uint64_t>(piece.from_strides[d]), piece.into_strides[d]};
    if (piece.from_strides[d] < 0) {
      before += from_reach;
      into += steps * static_cast<uint64_t>(dim.into);
      dim.from = -dim.from;
      dim.into = -dim.into;
    } else {
      after += from_reach;
    }
    // Both were within `length` before, and no object has 2^63 bytes: nothing is lost of their sums.
    if (before > piece.offset || after > length - piece.offset) {
      return Bad(number, "from_strides",
                 absl::StrCat("dimensions up to ", d, " leave the object's ", length, " bytes"));
    }
    dims_.push_back(dim);
  }
  if (piece.item_bytes > length - piece.offset - after) {
    return Bad(number, "item_bytes",
               absl::StrCat("the last element ends beyond the object's ", length, " bytes"));
  }
  if (piece.item_bytes > kMostReach - reached) {
    return Bad(number, "into_strides", "its elements reach further than there are addresses");
  }
  made->begin = piece.offset - before;
  made->into = reinterpret_cast<char*>(into);
  return absl::OkStatus();
}

// Puts the dimensions from `first` on in the order in which the bytes lie in the object, the outermost first (what is
// repeated, with stride 0, is outside of all), and makes one of two where the outer goes on where the inner ends.
void StridedPieces::JoinDims(size_t first) {
  std::sort(dims_.begin() + static_cast<int64_t>(first), dims_.end(),
            [](const Dim& a, const Dim& b) { return a.from - 1 > b.from - 1; });
  size_t kept = first;
  for (size_t d = first; d < dims_.size(); ++d) {
    const Dim inner = dims_[d];
    Dim* const outer = kept > first ? &dims_[kept - 1] : nullptr;
    if (outer != nullptr && outer->from == inner.count * inner.from &&
        static_cast<uint64_t>(outer->into) == inner.count * static_cast<uint64_t>(inner.into)) {
      *outer = {outer->count * inner.count, inner.from, inner.into};
    } else {
      dims_[kept++] = inner;
    }
  }
  dims_.resize(kept);
}

void StridedPieces::SortIntoBlocks() {
  std::vector<InBlock> touched;
  touched.reserve(pieces_.size());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    FindBlocks(static_cast<uint32_t>(i), 0, pieces_[i].begin, &touched);
  }
  std::sort(touched.begin(), touched.end(), [this](const InBlock& a, const InBlock& b) {
    return std::make_tuple(a.first, pieces_[a.second].begin, a.second) <
           std::make_tuple(b.first, pieces_[b.second].begin, b.second);
  });
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  wanted_.reserve(touched.size());
  for (const auto& [block, piece] : touched) {
    if (blocks_.empty() || blocks_.back() != block) {
      blocks_.push_back(block);
      starts_.push_back(wanted_.size());
    }
    wanted_.push_back(piece);
  }
  starts_.push_back(wanted_.size());
}

// Of a piece's dimensions from `d` on, which begin at `at`. Steps that are shorter than a block leave none out.
void StridedPieces::FindBlocks(uint32_t number, size_t d, uint64_t at,
                               std::vector<InBlock>* touched) const {
  const Piece& piece = pieces_[number];
  const Dim* const dims = dims_.data() + piece.first_dim;
  while (d < piece.dims && dims[d].from == 0) ++d;
  if (d < piece.dims && dims[d].from >= kBlockBytes) {
    for (uint64_t i = 0; i < dims[d].count; ++i) {
      FindBlocks(number, d + 1, at + i * dims[d].from, touched);
    }
    return;
  }
  const uint64_t bytes =
      d < piece.dims ? (dims[d].count - 1) * dims[d].from + dims[d].span : piece.run;
  for (uint64_t block = at / kBlockBytes; block <= (at + bytes - 1) / kBlockBytes; ++block) {
    touched->emplace_back(block, number);
  }
}

// --- copying

// A run of the object that is at hand. With `ahead` bytes more behind it, what is wanted are long runs, which are
// streamed, and what comes next is fetched meanwhile.
class StridedPieces::Chunk {
 public:
  Chunk(const Dim* dims, size_t count, uint64_t run, uint64_t begin, uint64_t end,
        std::optional<uint64_t> ahead = std::nullopt)
      : dims_(dims), count_(count), run_(run), begin_(begin), end_(end), ahead_(ahead) {}

  void Copy(size_t d, uint64_t at, char* into, const char* bytes) const {
    if (d == count_) return CopyRun(at, into, bytes);
    const Dim& dim = dims_[d];
    auto [first, last] = Steps(dim, at);
    const auto step_into = [&](uint64_t i) { return into + static_cast<int64_t>(i) * dim.into; };
    if (d + 2 == count_ && run_ <= kMostElement && Across(dim, dims_[d + 1])) {
      for (; first < last && at + first * dim.from < begin_; ++first) {
        Copy(d + 1, at + first * dim.from, step_into(first), bytes);
      }
      for (; first < last && at + (last - 1) * dim.from + dim.span > end_; --last) {
        Copy(d + 1, at + (last - 1) * dim.from, step_into(last - 1), bytes);
      }
      const Dim& inner = dims_[d + 1];
      for (uint64_t column = 0; column < inner.count; column += kTile) {
        const uint64_t columns = std::min(kTile, inner.count - column);
        for (uint64_t i = first; i < last; ++i) {
          CopyRuns(columns, run_, bytes + (at + i * dim.from + column * inner.from - begin_),
                   inner.from, step_into(i) + static_cast<int64_t>(column) * inner.into,
                   inner.into);
        }
      }
      return;
    }
    if (d + 1 < count_) {
      for (uint64_t i = first; i < last; ++i) {
        Copy(d + 1, at + i * dim.from, step_into(i), bytes);
      }
      return;
    }
    // Runs that are cut by the ends of the chunk, then all the others at once.
    for (; first < last && at + first * dim.from < begin_; ++first) {
      CopyRun(at + first * dim.from, step_into(first), bytes);
    }
    for (; first < last && at + (last - 1) * dim.from + run_ > end_; --last) {
      CopyRun(at + (last - 1) * dim.from, step_into(last - 1), bytes);
    }
    if (first == last) return;
    if (ahead_.has_value()) {
      for (; first < last; ++first) {
        Stream(at + first * dim.from, run_, dim.from, step_into(first), bytes);
      }
      return;
    }
    CopyRuns(last - first, run_, bytes + (at + first * dim.from - begin_), dim.from,
             step_into(first), dim.into);
  }

 private:
  // The steps of `dim`, whose first begins at `at`, that can have a byte here: [first, last).
  std::pair<uint64_t, uint64_t> Steps(const Dim& dim, uint64_t at) const {
    if (at >= end_) return {0, 0};
    if (dim.from == 0) return {0, at + dim.span > begin_ ? dim.count : 0};
    const uint64_t first = at + dim.span > begin_ ? 0 : (begin_ - at - dim.span) / dim.from + 1;
    return {first, std::max(first, std::min(dim.count, (end_ - 1 - at) / dim.from + 1))};
  }

  // Whether steps of `outer` are closer to each other in memory than those of `inner`, as of a transposed tensor. A
  // few columns at a time are then copied down all rows, so that the lines they go to are filled while in the cache.
  static bool Across(const Dim& outer, const Dim& inner) {
    return std::abs(outer.into) < std::abs(inner.into);
  }

  void CopyRun(uint64_t at, char* into, const char* bytes) const {
    const uint64_t from = std::max(at, begin_), until = std::min(at + run_, end_);
    if (from >= until) return;
    if (ahead_.has_value()) {
      return Stream(from, until - from, until - from, into + (from - at), bytes);
    }
    CopyRuns(1, until - from, bytes + (from - begin_), 0, into + (from - at), 0);
  }

  // A run that lies here, of which the next one begins `step` further on.
  void Stream(uint64_t at, uint64_t run, uint64_t step, char* into, const char* bytes) const {
    const uint64_t next = at - begin_ + kPart, there = end_ - begin_ + *ahead_;
    StreamRun(into, bytes + (at - begin_), run, bytes + std::min(next, there),
              next < there ? std::min(std::clamp(step, run, kPart), there - next) : 0);
  }

  const Dim* const dims_;
  const size_t count_;
  const uint64_t run_;
  const uint64_t begin_;
  const uint64_t end_;
  const std::optional<uint64_t> ahead_;
};

uint32_t StridedPieces::Copy(size_t i, uint64_t begin, uint64_t length, const char* bytes,
                             uint32_t crc) const {
  const uint64_t end = begin + length;
  bool summed = false;
  for (size_t w = starts_[i]; w < starts_[i + 1]; ++w) {
    const Piece& piece = pieces_[wanted_[w]];
    if (piece.end <= begin || piece.begin >= end) continue;
    if (!summed && piece.dims == 0 && piece.begin <= begin && piece.end >= end) {
      crc = CopyCrc32c(piece.into + (begin - piece.begin), bytes, length, crc);
      summed = true;
      continue;
    }
    Chunk(dims_.data() + piece.first_dim, piece.dims, piece.run, begin, end)
        .Copy(0, piece.begin, piece.into, bytes);
  }
  return summed ? crc : Crc32c(crc, bytes, length);
}

// Whether all that is wanted of [begin, end) are runs of bytes, each behind the one before.
bool StridedPieces::OnlyRuns(size_t i, uint64_t begin, uint64_t end) const {
  uint64_t last = 0;
  for (size_t w = starts_[i]; w < starts_[i + 1]; ++w) {
    const Piece& piece = pieces_[wanted_[w]];
    if (piece.end <= begin || piece.begin >= end) continue;
    if (piece.dims > 0 || piece.begin < last) return false;
    last = piece.end;
  }
  return true;
}

bool StridedPieces::OnlyLongRuns(size_t i, uint64_t begin, uint64_t end) const {
  for (size_t w = starts_[i]; w < starts_[i + 1]; ++w) {
    const Piece& piece = pieces_[wanted_[w]];
    if (piece.end > begin && piece.begin < end && piece.run < kLongRun) return false;
  }
  return true;
}

uint32_t StridedPieces::CopyLongRuns(size_t i, uint64_t begin, uint64_t length, const char* bytes,
                                     uint32_t crc) const {
  const uint64_t end = begin + length;
  size_t first = starts_[i];
  for (uint64_t at = begin; at < end; at += kPart) {
    const uint64_t until = std::min(at + kPart, end);
    const char* const part = bytes + (at - begin);
    crc = Crc32c(crc, part, until - at);
    while (first < starts_[i + 1] && pieces_[wanted_[first]].end <= at) ++first;
    for (size_t w = first; w < starts_[i + 1]; ++w) {
      const Piece& piece = pieces_[wanted_[w]];
      if (piece.begin >= until) break;  // as do all behind it
      if (piece.end <= at) continue;
      Chunk(dims_.data() + piece.first_dim, piece.dims, piece.run, at, until, end - until)
          .Copy(0, piece.begin, piece.into, part);
    }
  }
  EndRuns();
  return crc;
}

uint32_t StridedPieces::CopyOnce(size_t i, uint64_t begin, uint64_t length, const char* bytes,
                                 char* scratch, uint32_t crc) const {
  const uint64_t end = begin + length;
  if (!OnlyRuns(i, begin, end)) {
    if (OnlyLongRuns(i, begin, end)) return CopyLongRuns(i, begin, length, bytes, crc);
    for (uint64_t done = 0; done < length; done += kScratchAtOnce) {
      const uint64_t n = std::min(kScratchAtOnce, length - done);
      std::memcpy(scratch + done, bytes + done, n);
      crc = Crc32c(crc, scratch + done, n);
    }
    (void)Copy(i, begin, length, scratch, 0);
    return crc;
  }
  uint64_t at = begin;
  for (size_t w = starts_[i]; w < starts_[i + 1]; ++w) {
    const Piece& piece = pieces_[wanted_[w]];
    if (piece.end <= begin || piece.begin >= end) continue;
    const uint64_t from = std::max(piece.begin, begin), until = std::min(piece.end, end);
    crc = Crc32c(crc, bytes + (at - begin), from - at);
    crc = CopyCrc32c(piece.into + (from - piece.begin), bytes + (from - begin), until - from, crc);
    at = until;
  }
  return Crc32c(crc, bytes + (at - begin), end - at);
}

}  // namespace cairn::client
