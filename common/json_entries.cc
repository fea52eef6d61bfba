#include "common/json_entries.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"

namespace cairn {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxNumber = INT64_MAX;
constexpr size_t kShownNumber = 32;
constexpr size_t kShownName = 128;
constexpr int kNumberOutOfRange = 406;  // nlohmann's id of that error

// What nlohmann's parser calls. Each call returns false to end the parsing; status() then says why.
class Reader final : public nlohmann::json_sax<Json> {
 public:
  Reader(const std::function<Status(JsonEntry)>& take, const JsonPassesOver& passes_over)
      : take_(take), passes_over_(passes_over) {}

  const Status& status() const { return status_; }

  bool start_object(std::size_t) override {
    if (at_ == At::kPassed) return PassInto();
    if (at_ == At::kTop) return Go(At::kEntries);
    if (at_ == At::kEntry) return Go(At::kFields);
    return Unexpected();
  }
  bool key(string_t& name) override {
    if (at_ == At::kPassed) return true;
    if (at_ == At::kEntries) {
      if (!names_.insert(name).second) return Bad(absl::StrCat(Quoted(name), " is there twice"));
      entry_ = JsonEntry{std::move(name), {}, false};
      field_names_.clear();
      return Go(At::kEntry);
    }
    if (!field_names_.insert(name).second) {
      return Bad(absl::StrCat(Quoted(entry_.name), ": ", Quoted(name), " is there twice"));
    }
    if (passes_over_ && passes_over_(entry_.name, name)) return Go(At::kPassed);
    entry_.fields.push_back({std::move(name), {}});
    return Go(At::kField);
  }
  bool end_object() override {
    if (at_ == At::kPassed) return PassOut();
    if (at_ == At::kEntries) return Go(At::kEnd);
    return Take();
  }
  bool start_array(std::size_t) override {
    if (at_ == At::kPassed) return PassInto();
    if (at_ != At::kField) return Unexpected();
    entry_.fields.back().value.emplace<std::vector<uint64_t>>();
    return Go(At::kNumbers);
  }
  bool end_array() override { return at_ == At::kPassed ? PassOut() : Go(At::kFields); }
  bool string(string_t& text) override {
    if (at_ == At::kPassed) return Passed();
    if (at_ != At::kField) return Unexpected();
    entry_.fields.back().value = std::move(text);
    return Go(At::kFields);
  }
  bool number_unsigned(uint64_t number) override {
    if (at_ == At::kPassed) return Passed();
    if (at_ != At::kNumbers) return Unexpected();
    if (number > kMaxNumber) return BadNumber(absl::StrCat(number), "is above the limit 2^63 - 1");
    std::get<std::vector<uint64_t>>(entry_.fields.back().value).push_back(number);
    return true;
  }
  bool number_integer(int64_t number) override {
    if (at_ == At::kPassed) return Passed();
    return BadNumber(number == 0 ? "-0" : absl::StrCat(number), "is negative");
  }
  bool number_float(double, const string_t& text) override {
    if (at_ == At::kPassed) return Passed();
    // What has digits alone and yet is no integer of 64 bits is among them.
    return BadNumber(text, "is not a whole number below 2^63");
  }
  bool null() override {
    if (at_ == At::kPassed) return Passed();
    if (at_ != At::kEntry) return Unexpected();
    entry_.null = true;
    return Take();
  }
  bool boolean(bool) override { return at_ == At::kPassed ? Passed() : Unexpected(); }
  bool binary(binary_t&) override { return Unexpected(); }
  bool parse_error(std::size_t position, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    if (error.id == kNumberOutOfRange) return BadNumber(token, "is not a whole number below 2^63");
    return Bad(absl::StrCat(Where(), "byte ", position, " is not JSON"));
  }

 private:
  // What comes next. Each is followed by one of a few, so nothing deeper than the form is ever entered.
  enum class At {
    kTop,      // the object of all
    kEntries,  // an entry's name, or the end
    kEntry,    // its object
    kFields,   // a field's name, or the end of the entry
    kField,    // its value
    kNumbers,  // a number of the list, or its end
    kPassed,   // the value of a field that is passed over, or something in it
    kEnd,
  };

  bool Go(At at) {
    at_ = at;
    return true;
  }
  bool Take() {
    status_ = take_(std::move(entry_));
    return status_.ok() && Go(At::kEntries);
  }
  bool PassInto() {
    ++depth_;
    return true;
  }
  bool PassOut() {
    --depth_;
    return Passed();
  }
  bool Passed() { return depth_ > 0 || Go(At::kFields); }
  bool Bad(std::string why) {
    status_ = absl::InvalidArgumentError(std::move(why));
    return false;
  }
  bool BadNumber(absl::string_view number, absl::string_view why) {
    if (at_ != At::kNumbers) return Unexpected();
    return Bad(absl::StrCat(Where(), absl::CHexEscape(number.substr(0, kShownNumber)),
                            number.size() > kShownNumber ? "… " : " ", why));
  }
  bool Unexpected() {
    switch (at_) {
      case At::kEntry:
        return Bad(absl::StrCat(Where(), "is not an object"));
      case At::kField:
        return Bad(absl::StrCat(Where(), "is neither text nor a list of whole numbers"));
      case At::kNumbers:
        return Bad(absl::StrCat(Where(), "is not a list of whole numbers"));
      default:
        return Bad("is not a JSON object");
    }
  }
  std::string Where() const {
    switch (at_) {
      case At::kEntry:
      case At::kFields:
        return absl::StrCat(Quoted(entry_.name), ": ");
      case At::kField:
      case At::kNumbers:
        return absl::StrCat(Quoted(entry_.name), ": ",
                            absl::CHexEscape(entry_.fields.back().name.substr(0, kShownName)),
                            ": ");
      default:
        return "";
    }
  }

  const std::function<Status(JsonEntry)>& take_;
  const JsonPassesOver& passes_over_;
  Status status_;
  At at_ = At::kTop;
  size_t depth_ = 0;  // of objects and lists in what is passed over
  absl::flat_hash_set<std::string> names_;
  JsonEntry entry_;  // being read
  absl::flat_hash_set<std::string> field_names_;
};

}  // namespace

Status ReadJsonEntries(absl::string_view json, const std::function<Status(JsonEntry)>& take,
                       const JsonPassesOver& passes_over) {
  // nlohmann skips a byte order mark, and takes a zero byte for the end of the text.
  const size_t begin = json.find_first_not_of(" \t\r\n");
  if (begin == json.npos || json[begin] != '{') {
    return absl::InvalidArgumentError("is not a JSON object: it does not begin with {");
  }
  if (const size_t zero = json.find('\0'); zero != json.npos) {
    return absl::InvalidArgumentError(absl::StrCat("byte ", zero + 1, " is not JSON"));
  }
  Reader reader(take, passes_over);
  (void)Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.status();
}

StatusOr<std::string> JsonText(absl::string_view text) {
  try {
    return Json(std::string(text)).dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(absl::StrCat(Quoted(text), " is not UTF-8"));
  }
}

std::string Quoted(absl::string_view name) {
  return absl::StrCat("\"", absl::CHexEscape(name.substr(0, kShownName)),
                      name.size() > kShownName ? "…\"" : "\"");
}

}  // namespace cairn
