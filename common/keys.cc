#include "common/keys.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace cairn {
namespace {

constexpr char kScheme[] = "cairn://";

// Shown in messages: printable, and short enough for a log line.
std::string QuotedText(absl::string_view text) {
  constexpr size_t kShown = 64;
  if (text.size() <= kShown) return absl::StrCat("\"", absl::CHexEscape(text), "\"");
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kShown)), "…\"");
}

bool AllDigits(absl::string_view text) {
  if (text.empty()) return false;
  for (char c : text) {
    if (!absl::ascii_isdigit(c)) return false;
  }
  return true;
}

// Bytes of the well-formed UTF-8 character that `text` starts with (RFC 3629: shortest form, no
// surrogates, at most U+10FFFF); 0 when there is none.
size_t Utf8CharacterBytes(absl::string_view text) {
  const auto at = [&](size_t i) -> uint8_t {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
  };
  const auto continues = [&](size_t i) { return (at(i) & 0xC0) == 0x80; };
  const uint8_t first = at(0);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if (!continues(1) || !continues(2)) return 0;
    if (first == 0xE0 && at(1) < 0xA0) return 0;  // would fit in two bytes
    if (first == 0xED && at(1) > 0x9F) return 0;  // surrogate
    return 3;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if (!continues(1) || !continues(2) || !continues(3)) return 0;
    if (first == 0xF0 && at(1) < 0x90) return 0;  // would fit in three bytes
    if (first == 0xF4 && at(1) > 0x8F) return 0;  // above U+10FFFF
    return 4;
  }
  return 0;
}

Status BadName(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("name: ", QuotedText(name), " ", why));
}

StatusOr<Step> ParseStep(absl::string_view digits) {
  Step step = kNoStep;
  if (!absl::SimpleAtoi(digits, &step)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: ", QuotedText(digits), " is above the limit 9223372036854775807"));
  }
  return step;
}

}  // namespace

std::string CheckpointKey::DebugString() const {
  return absl::StrCat(job, "/", step, " attempt=", attempt, " revision=", revision);
}

std::string PartKey::DebugString() const {
  return absl::StrCat(checkpoint.DebugString(), " writer=", writer);
}

Status ValidateJob(absl::string_view job) {
  if (job.empty()) return absl::InvalidArgumentError("job: is empty");
  if (job.size() > kMaxJobBytes) {
    return absl::InvalidArgumentError(absl::StrCat("job: ", QuotedText(job), " has ", job.size(),
                                                   " bytes, the limit is ", kMaxJobBytes));
  }
  if (!absl::ascii_isalnum(job[0])) {
    return absl::InvalidArgumentError(
        absl::StrCat("job: ", QuotedText(job), " does not begin with a letter or digit"));
  }
  for (char c : job) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '_' && c != '-') {
      return absl::InvalidArgumentError(absl::StrCat(
          "job: ", QuotedText(job),
          " has a character outside [A-Za-z0-9._-]: ", QuotedText(absl::string_view(&c, 1))));
    }
  }
  return absl::OkStatus();
}

Status ValidateStep(Step step) {
  if (step < 0) return absl::InvalidArgumentError(absl::StrCat("step: ", step, " is below 0"));
  return absl::OkStatus();
}

Status ValidateAttempt(Attempt attempt) {
  if (attempt <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("attempt: ", attempt, " is not above 0"));
  }
  return absl::OkStatus();
}

Status ValidateWorld(Writer writer, int32_t world_size) {
  if (world_size < 1 || world_size > kMaxWorldSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: ", world_size, " is not in 1 … ", kMaxWorldSize));
  }
  if (writer < 0 || writer >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "writer: ", writer, " is not in 0 … ", world_size - 1, " (world_size ", world_size, ")"));
  }
  return absl::OkStatus();
}

Status ValidateObjectLength(int64_t length) {
  if (length < 0) {
    return absl::InvalidArgumentError(absl::StrCat("length: ", length, " is below 0"));
  }
  if (static_cast<uint64_t>(length) > kMaxObjectBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", length, " is above the limit ", kMaxObjectBytes));
  }
  return absl::OkStatus();
}

Status ValidateCheckpointRef(const CheckpointRef& ref) {
  CAIRN_RETURN_IF_ERROR(ValidateJob(ref.job));
  if (ref.step != kNoStep) CAIRN_RETURN_IF_ERROR(ValidateStep(ref.step));
  if (ref.attempt != 0) CAIRN_RETURN_IF_ERROR(ValidateAttempt(ref.attempt));
  if (ref.revision < -1) {
    return absl::InvalidArgumentError(absl::StrCat("revision: ", ref.revision, " is below -1"));
  }
  if (ref.step == kNoStep && (ref.attempt != 0 || ref.revision != -1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: latest has its own attempt and revision; attempt ", ref.attempt,
                     " revision ", ref.revision, " were asked for"));
  }
  return absl::OkStatus();
}

Status ValidateObjectName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("name: is empty");
  if (name.size() > kMaxNameBytes) {
    return BadName(name, absl::StrCat("has ", name.size(), " bytes, the limit is ", kMaxNameBytes));
  }
  for (size_t i = 0; i < name.size();) {
    const size_t bytes = Utf8CharacterBytes(name.substr(i));
    if (bytes == 0) return BadName(name, absl::StrCat("is not UTF-8 at byte ", i));
    if (bytes == 1 && absl::ascii_iscntrl(name[i])) {
      return BadName(name, absl::StrCat("has a control character at byte ", i));
    }
    i += bytes;
  }
  for (absl::string_view component : absl::StrSplit(name, '/')) {
    if (component.empty()) return BadName(name, "has an empty component");
    if (component == "." || component == "..") {
      return BadName(name, absl::StrCat("has a component ", QuotedText(component)));
    }
    if (component.size() > kMaxComponentBytes) {
      return BadName(name, absl::StrCat("has a component of ", component.size(),
                                        " bytes, the limit is ", kMaxComponentBytes));
    }
    if (absl::StartsWith(component, ".cairn")) {
      return BadName(name, "has a component that begins \".cairn\", which is reserved");
    }
  }
  return absl::OkStatus();
}

StatusOr<CairnPath> ParseCairnPath(absl::string_view path, absl::string_view default_job) {
  CairnPath parsed;
  absl::string_view rest = path;
  if (absl::ConsumePrefix(&rest, kScheme)) {
    const std::pair<absl::string_view, absl::string_view> split =
        absl::StrSplit(rest, absl::MaxSplits('/', 1));
    CAIRN_RETURN_IF_ERROR(ValidateJob(split.first));
    parsed.job = std::string(split.first);
    if (split.second.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "path: ", QuotedText(path), " names no step; the form is cairn://JOB/STEP/NAME"));
    }
    rest = split.second;
  } else if (absl::StartsWith(path, "cairn:")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path: ", QuotedText(path), " must begin \"cairn://\" (pathlib drops a slash: use a str)"));
  } else if (default_job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path: ", QuotedText(path), " is not cairn://JOB/STEP/NAME, and STEP/NAME needs a job"));
  }
  const bool short_form = parsed.job.empty();
  const size_t slash = rest.find('/');
  const absl::string_view step = rest.substr(0, slash);
  if (AllDigits(step)) {
    CAIRN_ASSIGN_OR_RETURN(parsed.step, ParseStep(step));
  } else if (!short_form && step == "latest") {
    parsed.latest = true;
  } else {
    return absl::InvalidArgumentError(absl::StrCat("path: ", QuotedText(path), " has step ",
                                                   QuotedText(step), ", which is not a number",
                                                   short_form ? "" : " or \"latest\""));
  }
  if (slash != absl::string_view::npos) {
    const absl::string_view name = rest.substr(slash + 1);
    CAIRN_RETURN_IF_ERROR(ValidateObjectName(name));
    parsed.name = std::string(name);
  } else if (short_form) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: ", QuotedText(path), " names no object; the form is STEP/NAME"));
  }
  if (short_form) {
    CAIRN_RETURN_IF_ERROR(ValidateJob(default_job));
    parsed.job = std::string(default_job);
  }
  return parsed;
}

StatusOr<ListPath> ParseListPath(absl::string_view path) {
  ListPath parsed;
  if (path.empty()) return parsed;
  const size_t slash = path.find('/');
  parsed.ref.job = std::string(path.substr(0, slash));
  CAIRN_RETURN_IF_ERROR(ValidateJob(parsed.ref.job));
  if (slash == absl::string_view::npos) return parsed;
  parsed.names_step = true;
  const absl::string_view step = path.substr(slash + 1);
  if (step == "latest") return parsed;
  const size_t at = step.find('@');
  if (!AllDigits(step.substr(0, at))) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: ", QuotedText(path), " is not \"\", JOB, JOB/STEP or JOB/latest"));
  }
  CAIRN_ASSIGN_OR_RETURN(parsed.ref.step, ParseStep(step.substr(0, at)));
  if (at == absl::string_view::npos) return parsed;
  const std::pair<absl::string_view, absl::string_view> exact =
      absl::StrSplit(step.substr(at + 1), absl::MaxSplits('.', 1));
  if (!AllDigits(exact.first) || !AllDigits(exact.second) ||
      !absl::SimpleAtoi(exact.first, &parsed.ref.attempt) || parsed.ref.attempt < 1 ||
      !absl::SimpleAtoi(exact.second, &parsed.ref.revision)) {
    return absl::InvalidArgumentError(
        absl::StrCat("path: ", QuotedText(path), " is not JOB/STEP@ATTEMPT.REVISION"));
  }
  return parsed;
}

std::string ExactListPath(const CheckpointKey& checkpoint) {
  return absl::StrCat(checkpoint.job, "/", checkpoint.step, "@", checkpoint.attempt, ".",
                      checkpoint.revision);
}

}  // namespace cairn
