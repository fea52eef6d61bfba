#include "server/transport/tcp_wire.h"

#include "common/checksum.h"
#include "common/codec.h"

namespace cairn::transport {
namespace {

constexpr absl::string_view kStreamMagic = "CAIRNDAT", kQuestionMagic = "READ",
                            kAnswerMagic = "DATA";

void AppendCrc(std::string* frame) {
  AppendInteger<uint32_t>(frame, Crc32c(0, frame->data(), frame->size()));
}

// The frame without magic and checksum, or what is wrong with it.
StatusOr<Cursor> OpenFrame(absl::string_view bytes, size_t size, absl::string_view magic) {
  if (bytes.size() != size) {
    return absl::InvalidArgumentError(absl::StrCat("frame: ", bytes.size(), " bytes, not ", size));
  }
  const size_t checked = size - sizeof(uint32_t);
  if (bytes.substr(0, magic.size()) != magic) {
    return absl::InvalidArgumentError(absl::StrCat("magic: not \"", magic, "\""));
  }
  if (ReadInteger<uint32_t>(bytes.data() + checked) != Crc32c(0, bytes.data(), checked)) {
    return absl::InvalidArgumentError("frame: its checksum is wrong");
  }
  return Cursor(bytes.substr(magic.size(), checked - magic.size()));
}

// Codes are gRPC's, 0 to 16.
StatusOr<absl::StatusCode> CodeOf(uint16_t number) {
  if (number > 16)
    return absl::InvalidArgumentError(absl::StrCat("code: ", number, " is above 16"));
  return static_cast<absl::StatusCode>(number);
}

Status Reserved(uint64_t value) {
  return value == 0 ? absl::OkStatus() : absl::InvalidArgumentError("a reserved field is not 0");
}

}  // namespace

std::string Encode(const Opening& opening) {
  std::string frame(kStreamMagic);
  AppendInteger(&frame, opening.version);
  AppendInteger<uint16_t>(&frame, 0);
  AppendInteger(&frame, opening.reader.rank);
  AppendInteger(&frame, opening.reader.incarnation);
  AppendInteger<uint32_t>(&frame, 0);
  AppendCrc(&frame);
  return frame;
}

std::string Encode(const Opened& opened) {
  std::string frame(kStreamMagic);
  AppendInteger(&frame, opened.version);
  AppendInteger(&frame, static_cast<uint16_t>(opened.code));
  AppendCrc(&frame);
  return frame;
}

std::string Encode(const Question& question) {
  std::string frame(kQuestionMagic);
  AppendInteger<uint32_t>(&frame, 0);
  AppendInteger(&frame, question.sequence);
  frame.append(reinterpret_cast<const char*>(question.token.data()), question.token.size());
  AppendInteger(&frame, question.slab);
  AppendInteger(&frame, question.offset);
  AppendInteger(&frame, question.length);
  AppendCrc(&frame);
  return frame;
}

std::string Encode(const Answer& answer) {
  std::string frame(kAnswerMagic);
  AppendInteger(&frame, static_cast<uint16_t>(answer.code));
  AppendInteger<uint16_t>(&frame, 0);
  AppendInteger(&frame, answer.sequence);
  AppendInteger(&frame, answer.length);
  AppendCrc(&frame);
  return frame;
}

StatusOr<Opening> DecodeOpening(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(Cursor frame, OpenFrame(bytes, kOpeningBytes, kStreamMagic));
  Opening opening;
  uint16_t flags = 0;
  uint32_t reserved = 0;
  frame.Take(&opening.version);
  frame.Take(&flags);
  frame.Take(&opening.reader.rank);
  frame.Take(&opening.reader.incarnation);
  frame.Take(&reserved);
  if (opening.version == kTcpVersion) CAIRN_RETURN_IF_ERROR(Reserved(flags | reserved));
  return opening;
}

StatusOr<Opened> DecodeOpened(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(Cursor frame, OpenFrame(bytes, kOpenedBytes, kStreamMagic));
  Opened opened;
  uint16_t code = 0;
  frame.Take(&opened.version);
  frame.Take(&code);
  CAIRN_ASSIGN_OR_RETURN(opened.code, CodeOf(code));
  return opened;
}

StatusOr<Question> DecodeQuestion(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(Cursor frame, OpenFrame(bytes, kQuestionBytes, kQuestionMagic));
  Question question;
  uint32_t reserved = 0;
  absl::string_view token;
  frame.Take(&reserved);
  frame.Take(&question.sequence);
  frame.TakeBytes(question.token.size(), &token);
  std::copy(token.begin(), token.end(), question.token.begin());
  frame.Take(&question.slab);
  frame.Take(&question.offset);
  frame.Take(&question.length);
  CAIRN_RETURN_IF_ERROR(Reserved(reserved));
  if (question.length == 0 || question.length > kMaxReadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", question.length, " is not in 1 to ", kMaxReadBytes));
  }
  return question;
}

StatusOr<Answer> DecodeAnswer(absl::string_view bytes) {
  CAIRN_ASSIGN_OR_RETURN(Cursor frame, OpenFrame(bytes, kAnswerBytes, kAnswerMagic));
  Answer answer;
  uint16_t code = 0, reserved = 0;
  frame.Take(&code);
  frame.Take(&reserved);
  frame.Take(&answer.sequence);
  frame.Take(&answer.length);
  CAIRN_RETURN_IF_ERROR(Reserved(reserved));
  CAIRN_ASSIGN_OR_RETURN(answer.code, CodeOf(code));
  if (answer.length > kMaxReadBytes ||
      (answer.code != absl::StatusCode::kOk && answer.length > 0)) {
    return absl::InvalidArgumentError(absl::StrCat("length: ", answer.length, " with code ", code));
  }
  return answer;
}

}  // namespace cairn::transport
