// The page of `top`: the ring in its order, what is being read, and what still has to be copied or written.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/cli/format.h"
#include "client/cli/render.h"
#include "client/cli/status_fields.h"

namespace cairn::cli {
namespace {

// Narrower than this no column is worth its place; lines are then cut.
constexpr int kLeastColumns = 20;

const Json& Field(const Json& object, const char* field) {
  static const Json kNone = Json::object();
  const auto found = object.find(field);
  return found != object.end() && found->is_object() ? *found : kNone;
}

// Bytes a second between two pages. None: there was no page before, or the daemon has begun to count anew.
std::optional<double> RateOf(std::optional<uint64_t> before, uint64_t now, absl::Duration between) {
  const double seconds = absl::ToDoubleSeconds(between);
  if (!before.has_value() || now < *before || seconds <= 0) return std::nullopt;
  return static_cast<double>(now - *before) / seconds;
}

std::string RateText(std::optional<double> rate) { return rate ? HumanRate(*rate) : "-"; }

std::optional<double> CounterRate(const TopPage& page, const char* counter) {
  const Json& before = Field(page.before, "counters");
  const Json& now = Field(page.status, "counters");
  std::optional<uint64_t> from;
  if (before.contains(counter)) from = Bytes(before, counter);
  return RateOf(from, Bytes(now, counter), page.between);
}

bool SamePart(const Json& a, const Json& b) {
  return Text(a, "job") == Text(b, "job") && Number(a, "attempt") == Number(b, "attempt") &&
         Number(a, "step") == Number(b, "step") && Number(a, "writer") == Number(b, "writer");
}

// A part that the page before does not show has been begun since.
std::optional<double> FetchRate(const TopPage& page, const Json& fetch) {
  if (page.before.empty()) return std::nullopt;
  std::optional<uint64_t> from = 0;
  for (const Json& earlier : List(Field(page.before, "ring"), "fetches")) {
    if (SamePart(earlier, fetch)) from = Bytes(earlier, "done_bytes");
  }
  return RateOf(from, Bytes(fetch, "done_bytes"), page.between);
}

std::vector<int64_t> Ranks(const Json& fetch) {
  std::vector<int64_t> ranks;
  for (const Json& rank : List(fetch, "sources")) {
    if (rank.is_number()) ranks.push_back(rank.get<int64_t>());
  }
  return ranks;
}

// A table that may lose columns, the least important first, until it is narrow enough.
class Fitting {
 public:
  struct Column {
    std::string title;
    bool right = false;  // holds numbers
    int rank = 0;        // 0 stays; else the greatest goes first
  };
  explicit Fitting(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // `columns` 0: as wide as it is.
  std::string Render(int columns) const {
    for (int most = static_cast<int>(columns_.size());; --most) {
      const std::string text = With(most);
      if (most == 0 || columns == 0 || Width(text) <= columns) return text;
    }
  }

 private:
  std::string With(int most) const {
    std::vector<std::string> header;
    std::vector<size_t> right;
    const auto shown = [&](size_t column) { return columns_[column].rank <= most; };
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!shown(i)) continue;
      if (columns_[i].right) right.push_back(header.size());
      header.push_back(columns_[i].title);
    }
    Table table(header, right);
    for (const auto& row : rows_) {
      std::vector<std::string> cells;
      for (size_t i = 0; i < row.size(); ++i) {
        if (shown(i)) cells.push_back(row[i]);
      }
      table.Row(cells);
    }
    return table.Render();
  }
  static int Width(const std::string& text) {
    size_t widest = 0;
    for (const auto line : absl::StrSplit(text, '\n')) widest = std::max(widest, line.size());
    return static_cast<int>(widest);
  }

  const std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

std::string MemoryText(const Json& status) {
  return absl::StrCat(HumanBytes(Bytes(status, "used_bytes")), " of ",
                      HumanBytes(Bytes(status, "budget_bytes")));
}

std::string MembersText(const TopPage& page) {
  const Json& ring = Field(page.status, "ring");
  Fitting table({{"RANK", true},
                 {"STATE"},
                 {"MEMORY", true, 2},
                 {"KEEPS FOR US", true, 1},
                 {"WE KEEP FOR IT", true, 1},
                 {"READING", true, 3},
                 {"ADDRESS", false, 4}});
  for (const Json& member : List(ring, "members")) {
    const bool self = Text(member, "state") == "self";
    const int64_t rank = Number(member, "rank");
    int64_t reading = 0;
    for (const Json& fetch : List(ring, "fetches")) {
      const std::vector<int64_t> from = Ranks(fetch);
      reading += std::count(from.begin(), from.end(), rank);
    }
    table.Row({absl::StrCat(rank), MemberStateText(member), self ? MemoryText(page.status) : "-",
               self ? "-" : HumanBytes(Bytes(member, "held_for_us_bytes")),
               self ? "-" : HumanBytes(Bytes(member, "held_for_it_bytes")),
               self || reading == 0 ? "-" : Plural(reading, "part"), Text(member, "address")});
  }
  return table.Render(page.columns);
}

std::string TransfersText(const TopPage& page) {
  const Json& fetches = List(Field(page.status, "ring"), "fetches");
  if (fetches.empty()) return "";
  Fitting table({{"JOB"},
                 {"STEP", true},
                 {"WRITER", true, 3},
                 {"FROM", false, 2},
                 {"FOR", false, 4},
                 {"DONE", true},
                 {"OF", true, 1},
                 {"RATE", true}});
  for (const Json& fetch : fetches) {
    const std::vector<int64_t> from = Ranks(fetch);
    const uint64_t bytes = Bytes(fetch, "bytes");
    table.Row({Text(fetch, "job"), StepText(StepField(fetch, "step")),
               absl::StrCat(Number(fetch, "writer")),
               from.empty() ? "-" : absl::StrCat("rank ", absl::StrJoin(from, ", ")),
               Text(fetch, "what_for"),
               absl::StrCat(Percent(Bytes(fetch, "done_bytes"), bytes), " %"), HumanBytes(bytes),
               RateText(FetchRate(page, fetch))});
  }
  return absl::StrCat("\nbeing read\n", table.Render(page.columns));
}

// What still has to be written to storage, and copied to others.
std::string BacklogText(const TopPage& page) {
  const bool storage = !Text(page.status, "storage_root").empty();
  Fitting table({{"JOB"},
                 {"LATEST", true},
                 {"REPLICAS", true},
                 {"PROTECTED", true, 1},
                 {"TARGET", true, 3},
                 {"IN STORAGE", true, 1},
                 {"NOT IN STORAGE", true, 2}});
  bool any = false;
  for (const Json& job : List(page.status, "jobs")) {
    if (Text(job, "job").empty()) continue;
    any = true;
    const RingJob ring = RingJobOf(job);
    const int64_t steps = Number(job, "unprotected_checkpoints");
    const std::string owed = steps == 0 ? "-"
                                        : absl::StrCat(Plural(steps, "step"), ", ",
                                                       HumanBytes(Bytes(job, "unprotected_bytes")));
    table.Row({Text(job, "job"), StepText(ring.known ? ring.latest : StepField(job, "latest_step")),
               ring.known ? ReplicasText(ring) : "-", StepText(ring.protect), StepText(ring.target),
               storage ? StepText(StepField(job, "latest_persisted_step")) : "none", owed});
  }
  return any ? absl::StrCat("\njobs\n", table.Render(page.columns)) : "";
}

// Each line in at most so many columns. What is cut off has no mark: a mark would take its place.
std::string Cut(const std::string& text, int columns) {
  if (columns == 0) return text;
  std::string cut;
  int width = 0;
  for (const char c : text) {
    const bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (c == '\n') {
      width = 0;
    } else if (begins) {
      ++width;
    }
    if (c == '\n' || width <= columns) cut.push_back(c);
  }
  return cut;
}

// What does not fit below each other is counted in the last line; the cursor stands in one more.
std::string CutLines(const std::string& text, int lines) {
  const auto all = static_cast<int>(std::count(text.begin(), text.end(), '\n'));
  if (lines == 0 || all < lines) return text;
  const int shown = std::max(lines - 2, 1);
  size_t end = 0;
  for (int i = 0; i < shown; ++i) end = text.find('\n', end) + 1;
  return absl::StrCat(text.substr(0, end), "+ ", Plural(all - shown, "line"), "\n");
}

std::string Fit(const std::string& text, const TopPage& page) {
  const int columns = page.columns == 0 ? 0 : std::max(page.columns, kLeastColumns);
  return CutLines(Cut(text, columns), page.lines);
}

Json Rate(std::optional<double> rate) { return rate ? Json(static_cast<int64_t>(*rate)) : Json(); }

}  // namespace

std::string RenderTop(const TopPage& page) {
  const Json& status = page.status;
  const Json& ring = Field(status, "ring");
  const std::string when =
      absl::FormatTime("%H:%M:%S", absl::FromUnixMillis(page.now_unix_ms), absl::UTCTimeZone());
  std::string text = absl::StrCat(when, "  ", InRing(status) ? RingHeading(status) : "alone");
  const std::string state = Text(status, "state");
  if (state != "serving") absl::StrAppend(&text, "; ", Printable(state));
  absl::StrAppend(&text, "\nmemory    ", MemoryText(status));
  if (!InRing(status)) return Fit(absl::StrCat(text, "\n", BacklogText(page)), page);
  absl::StrAppend(&text, ", ", HumanBytes(Bytes(ring, "replica_bytes")), " of ",
                  HumanBytes(Bytes(ring, "replica_quota_bytes")), " kept for others\nreading   ",
                  RateText(CounterRate(page, "bytes_read_over_tcp")), " over TCP, ",
                  RateText(CounterRate(page, "bytes_read_over_rdma")), " over RDMA; ",
                  Plural(Number(ring, "grants"), "grant"), " to others\n\n", MembersText(page),
                  TransfersText(page), BacklogText(page));
  return Fit(text, page);
}

Json TopToJson(const TopPage& page) {
  const Json& status = page.status;
  Json fetches = Json::array();
  for (Json fetch : List(Field(status, "ring"), "fetches")) {
    fetch["bytes_per_second"] = Rate(FetchRate(page, fetch));
    fetches.push_back(std::move(fetch));
  }
  Json ring = Field(status, "ring");
  if (!ring.empty()) ring["fetches"] = std::move(fetches);
  Json json = {{"now_unix_ms", page.now_unix_ms}};
  for (const char* field : {"state", "budget_bytes", "used_bytes", "storage_root"}) {
    if (status.contains(field)) json[field] = status[field];
  }
  json["bytes_per_second_over_tcp"] = Rate(CounterRate(page, "bytes_read_over_tcp"));
  json["bytes_per_second_over_rdma"] = Rate(CounterRate(page, "bytes_read_over_rdma"));
  json["ring"] = std::move(ring);
  json["jobs"] = Json::array();
  for (const Json& job : List(status, "jobs")) {
    Json shown;
    for (const char* field : {"job", "latest_step", "latest_persisted_step",
                              "unprotected_checkpoints", "unprotected_bytes", "ring"}) {
      if (job.contains(field)) shown[field] = job[field];
    }
    json["jobs"].push_back(std::move(shown));
  }
  return json;
}

}  // namespace cairn::cli
