#include "server/catalog/mysql_statements.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cairn::catalog {
namespace {

// Of a step that is removed no row that comes late says that a part of it is here: its parts are removed, its holders have
// nothing. So one row that is written alone, in one round trip, looks at its step by itself (bound to its key and
// sequence); of many it costs less to look at each step once, after them (ForgetParts, ForgetHolders).
constexpr char kStepIsRemoved[] =
    "EXISTS (SELECT 1 FROM steps WHERE steps.cluster=? AND steps.job=? AND steps.step=? AND "
    "steps.attempt=? AND steps.revision=? AND steps.removed=1 AND (steps.of_home=1 OR "
    "steps.sequence>?))";
bool FollowsItsStep(const Table& table, const Column& column) {
  const std::string_view of = table.name, name = column.name;
  return (of == "parts" && name == "removed") || (of == "holders" && name == "resident");
}

// Of a step that is removed, in whichever order they came: no older row of a part says that it is here.
std::string Forget(const char* what, const char* table, const char* how) {
  return absl::StrCat(what, " JOIN steps USING (cluster, job, step, attempt, revision) ", how,
                      " WHERE ", table, ".cluster=? AND ", table, ".job=? AND ", table,
                      ".step=? AND ", table, ".attempt=? AND ", table,
                      ".revision=? AND steps.removed=1 AND (steps.of_home=1 OR steps.sequence>",
                      table, ".sequence)");
}
}  // namespace

Values BoundAlone(const Table& table, const Values& row) {
  constexpr size_t kKeyOfStep = 5;  // cluster, job, step, attempt, revision
  Values values = {row[0]};
  for (size_t i = 0; i < table.columns.size(); ++i) {
    values.push_back(row[i + 1]);
    if (!FollowsItsStep(table, table.columns[i])) continue;
    values.insert(values.end(), row.begin(), row.begin() + kKeyOfStep);
    values.push_back(row.back());
  }
  return values;
}

// After it the newer version of each row is there. The server assigns from left to right, and a column that was assigned
// reads as its new value: so those that say which is newer come last, the least first. By then the comparison tells only
// of those before them, which is all that is still to be known. MariaDB does not know MySQL's `AS new`.
std::string UpsertOf(const Table& table, size_t rows, bool alone) {
  std::vector<std::string> names = {"cluster"}, marks = {"?"}, coming, there, sets, last;
  for (const Column& column : table.columns) {
    names.emplace_back(column.name);
    marks.emplace_back("?");
    if (alone && FollowsItsStep(table, column)) {
      const bool is_removed = std::string_view(column.name) == "removed";
      marks.back() = absl::StrCat(is_removed ? "? OR " : "? AND NOT ", kStepIsRemoved);
    }
    if (column.rule != Rule::kOrders) continue;
    coming.push_back(absl::StrCat("VALUES(", column.name, ")"));
    there.push_back(absl::StrCat(table.name, ".", column.name));
  }
  const std::string newer =
      absl::StrCat("(", absl::StrJoin(coming, ","), ")>(", absl::StrJoin(there, ","), ")");
  for (const Column& column : table.columns) {
    const std::string to = absl::StrCat("VALUES(", column.name, ")");
    const std::string from = absl::StrCat(table.name, ".", column.name);
    const std::string by_version = absl::StrCat("IF(", newer, ",", to, ",", from, ")");
    switch (column.rule) {
      case Rule::kKey:
        break;
      case Rule::kNewer:
        sets.push_back(absl::StrCat(column.name, "=", by_version));
        break;
      case Rule::kRises:
        sets.push_back(absl::StrCat(column.name, "=IF(VALUES(of_home),GREATEST(", to, ",", from,
                                    "),", by_version, ")"));
        break;
      case Rule::kOrigin:
        sets.push_back(absl::StrCat(column.name, "=IF(", newer, " AND (", to, "<>", kUnknownStep,
                                    " OR ", from, "=", kUnknownStep, "),", to, ",", from, ")"));
        break;
      case Rule::kOrders:
        last.insert(last.begin(), absl::StrCat(column.name, "=", by_version));
        break;
    }
  }
  sets.insert(sets.end(), last.begin(), last.end());
  const std::string of_row = absl::StrCat("(", absl::StrJoin(marks, ","), ")");
  return absl::StrCat("INSERT INTO ", table.name, " (", absl::StrJoin(names, ","), ") VALUES ",
                      absl::StrJoin(std::vector<std::string>(rows, of_row), ","),
                      " ON DUPLICATE KEY UPDATE ", absl::StrJoin(sets, ","));
}

const std::string& ForgetParts() {
  static const auto* const sql =
      new std::string(Forget("UPDATE parts", "parts", "SET parts.persisted=0, parts.removed=1"));
  return *sql;
}
const std::string& ForgetHolders() {
  static const auto* const sql = new std::string(
      "DELETE holders FROM holders LEFT JOIN steps USING (cluster, job, step, attempt, revision) "
      "WHERE holders.cluster=? AND holders.job=? AND holders.step=? AND holders.attempt=? AND "
      "holders.revision=? AND (holders.resident=0 OR (steps.removed=1 AND (steps.of_home=1 OR "
      "steps.sequence>holders.sequence)))");
  return *sql;
}

}  // namespace cairn::catalog
