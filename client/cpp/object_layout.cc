#include "client/cpp/object_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cairn::client {

Status ValidateSources(absl::Span<const Source> sources) {
  uint64_t total = 0;
  for (const Source& source : sources) {
    if (source.length > kMaxObjectBytes - total) {
      return absl::InvalidArgumentError(absl::StrCat("length: more than ", kMaxObjectBytes));
    }
    if (source.data == nullptr && source.fd < 0 && source.length > 0) {
      return absl::InvalidArgumentError("source: a null pointer with a length");
    }
    total += source.length;
  }
  return absl::OkStatus();
}

void ObjectLayout::Add(const Segment& segment) {
  if (segment.device != nullptr &&
      std::find(devices_.begin(), devices_.end(), segment.device) == devices_.end()) {
    devices_.push_back(segment.device);
  }
  segments_.push_back(segment);
  starts_.push_back(starts_.back() + segment.length);
}

void ObjectLayout::Add(const Source& source, int32_t record) {
  Segment segment;
  segment.data = source.data;
  segment.length = source.length;
  segment.record = record;
  segment.fd = source.fd;
  segment.offset = source.offset;
  segment.device = source.device;
  Add(segment);
}

ObjectLayout ObjectLayout::Raw(absl::Span<const Source> sources) {
  ObjectLayout layout;
  layout.segments_.reserve(sources.size());
  for (const Source& source : sources) {
    if (source.length > 0) layout.Add(source, -1);
  }
  return layout;
}

StatusOr<ObjectLayout> ObjectLayout::Of(absl::Span<const Source> sources, const ZipPlan* plan) {
  CAIRN_RETURN_IF_ERROR(ValidateSources(sources));
  if (plan == nullptr) return Raw(sources);
  return Zip(plan, sources, plan->MinimumLength());
}

StatusOr<ObjectLayout> ObjectLayout::Zip(const ZipPlan* plan, absl::Span<const Source> records,
                                         uint64_t length) {
  ObjectLayout layout;
  layout.segments_.reserve(2 * records.size() + 1);
  layout.starts_.reserve(2 * records.size() + 2);
  CAIRN_RETURN_IF_ERROR(layout.AddArchive(plan, records, length));
  return layout;
}

StatusOr<ObjectLayout> ObjectLayout::Pieces(absl::Span<const Piece> pieces,
                                            std::vector<PiecePlace>* places) {
  static constexpr char kZeros[kZipAlignment] = {};
  ObjectLayout layout;
  places->clear();
  places->reserve(pieces.size());
  layout.archives_.reserve(pieces.size());
  layout.segments_.reserve(3 * pieces.size());
  layout.starts_.reserve(3 * pieces.size() + 1);
  for (const Piece& piece : pieces) {
    // A raw piece ends where it ends; an archive can be longer, by a gap within.
    if (const uint64_t odd = layout.length() % kZipAlignment; odd > 0) {
      layout.Add(Source{kZeros, kZipAlignment - odd}, -1);
    }
    const uint64_t begin = layout.length();
    CAIRN_RETURN_IF_ERROR(
        Annotate(layout.AddPiece(piece), absl::StrCat("pieces[", places->size(), "]")));
    places->push_back({begin, layout.length() - begin});
  }
  return layout;
}

Status ObjectLayout::AddPiece(const Piece& piece) {
  if (piece.frame != nullptr) return AddFrame(piece.frame, piece.sources);
  if (piece.plan != nullptr) {
    const uint64_t least = piece.plan->MinimumLength();
    return AddArchive(piece.plan, piece.sources,
                      (least + kZipAlignment - 1) / kZipAlignment * kZipAlignment);
  }
  for (const Source& source : piece.sources) {
    if (source.length > 0) Add(source, -1);
  }
  return absl::OkStatus();
}

Status ObjectLayout::AddFrame(const ZipFrame* frame, absl::Span<const Source> open) {
  if (open.size() != 1 || open[0].length != frame->open_length()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sources: ", open.size(), " of ", open.empty() ? 0 : open[0].length,
                     " bytes, the frame is open for one of ", frame->open_length()));
  }
  if (open[0].fd >= 0) return absl::InvalidArgumentError("sources[0]: a file");
  Segment literal;
  literal.record = static_cast<int32_t>(records_);
  literal.archive = static_cast<uint32_t>(archives_.size());
  archives_.push_back({nullptr, frame, records_, frame->length()});
  literal.length = frame->before_length();
  literal.literal = 0;
  Add(literal);
  Add(open[0], literal.record);
  literal.length = frame->after_length();
  literal.literal = 1;
  literal.behind = true;
  Add(literal);
  ++records_;
  return absl::OkStatus();
}

Status ObjectLayout::AddArchive(const ZipPlan* plan, absl::Span<const Source> records,
                                uint64_t length) {
  const auto& planned = plan->records();
  if (records.size() != planned.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("records: ", records.size(), ", the plan has ", planned.size()));
  }
  if (length < plan->MinimumLength() || length - plan->MinimumLength() > kZipMaxGap) {
    return absl::InvalidArgumentError(absl::StrCat("length: ", length, ", must be ",
                                                   plan->MinimumLength(), " and at most ",
                                                   kZipMaxGap, " more"));
  }
  const uint64_t begin = this->length();
  const auto archive = static_cast<uint32_t>(archives_.size());
  archives_.push_back({plan, nullptr, records_, length});
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].length != planned[i].length) {
      return absl::InvalidArgumentError(absl::StrCat("records[", i, "]: ", records[i].length,
                                                     " bytes, the plan has ", planned[i].length));
    }
    if (records[i].fd >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("records[", i, "]: a file"));
    }
    const auto& placement = plan->placements()[i];
    if (begin + placement.header_offset != this->length()) {
      return absl::InternalError("zip plan with a hole in it");
    }
    const auto record = static_cast<int32_t>(records_ + i);
    Segment header;
    header.length = placement.data_offset - placement.header_offset;
    header.record = record;
    header.literal = static_cast<int32_t>(i);
    header.archive = archive;
    Add(header);
    Add(records[i], record);
  }
  if (begin + plan->TailOffset() != this->length()) {
    return absl::InternalError("zip plan with a hole in it");
  }
  Segment tail;
  tail.length = length - plan->TailOffset();
  tail.literal = static_cast<int32_t>(records.size());
  tail.archive = archive;
  Add(tail);
  records_ += records.size();
  return absl::OkStatus();
}

StatusOr<std::string> ObjectLayout::Literal(const Segment& segment,
                                            const std::vector<uint32_t>& crcs) const {
  const Archive& archive = archives_[segment.archive];
  if (archive.frame != nullptr) {
    const uint32_t crc = crcs[segment.record];
    return segment.behind ? archive.frame->After(crc) : archive.frame->Before(crc);
  }
  if (segment.record >= 0) {
    return archive.plan->LocalHeader(static_cast<size_t>(segment.literal), crcs[segment.record]);
  }
  const size_t records = archive.plan->records().size();
  return archive.plan->Tail(absl::MakeConstSpan(crcs).subspan(archive.first_record, records),
                            archive.length);
}

}  // namespace cairn::client
