#include "client/python/src/planning.h"

#include <endian.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "client/cpp/shard_balance.h"
#include "client/python/src/call.h"

namespace cairn::python {
namespace {

using client::HeldShard;

// Borrowed references all: the dictionaries hold them (Held).
struct Named {
  PyObject* id = nullptr;
  PyObject* ranks = nullptr;
  PyObject* size = nullptr;
  size_t holders_begin = 0;
  size_t holders = 0;
  uint64_t bytes = 0;
  bool of_others = false;
};

// Keeps the objects of two dictionaries alive while code of Python's runs that could take them out: from the
// first time on that some is about to run, for it costs a fifth of the whole.
class Held {
 public:
  Held(const py::dict& first, const py::dict& second) : dicts_{first, second} {}

  void Now() {
    if (std::exchange(held_, true)) return;
    for (py::dict& dict : dicts_) {
      dict = py::reinterpret_steal<py::dict>(PyDict_Copy(dict.ptr()));
      if (!dict) throw py::error_already_set();
    }
  }

 private:
  std::array<py::dict, 2> dicts_;
  bool held_ = false;
};

std::string Shown(PyObject* id) { return py::repr(py::handle(id)).cast<std::string>(); }

// --- Python's objects, which lie all over the memory: what comes next is asked for so many shards before --

constexpr size_t kAhead = 8;

// The items of a tuple or a list, whose own head is at hand.
void PrefetchItems(PyObject* items) {
  if (!PyTuple_CheckExact(items) && !PyList_CheckExact(items)) return;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    __builtin_prefetch(PySequence_Fast_GET_ITEM(items, i));
  }
}

// What a list points to, to ask for its items next.
void PrefetchList(PyObject* list) {
  if (PyList_CheckExact(list)) __builtin_prefetch(PySequence_Fast_ITEMS(list));
}

// Of an id that is a tuple and has its name first, the letters behind its head.
void PrefetchText(PyObject* id) {
  if (!PyTuple_CheckExact(id) || PyTuple_GET_SIZE(id) == 0) return;
  __builtin_prefetch(reinterpret_cast<const char*>(PyTuple_GET_ITEM(id, 0)) + 64);
}

// The value of an int of one of Python's digits, which most are; -1: it is another, or no int.
int64_t SmallInteger(PyObject* value) {
  if (!PyLong_CheckExact(value)) return -1;
  auto* const number = reinterpret_cast<PyLongObject*>(value);
#if PY_VERSION_HEX >= 0x030C0000
  return PyUnstable_Long_IsCompact(number) ? PyUnstable_Long_CompactValue(number) : -1;
#else
  const Py_ssize_t digits = Py_SIZE(number);
  if (digits == 0) return 0;
  return digits == 1 ? int64_t{number->ob_digit[0]} : -1;
#endif
}

// --- the order of ids -------------------------------------------------------------------------------

constexpr int kMaxDepth = 8;

// Appends bytes that compare (memcmp) as the ids do in Python. Of ids as frameworks make them: str, int, None and tuples
// of these. False: another kind of id.
bool AppendKey(PyObject* id, int depth, std::string* key) {
  if (PyUnicode_Check(id)) {
    Py_ssize_t length = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(id, &length);  // UTF-8 sorts as code points do
    if (text == nullptr) {
      PyErr_Clear();
      return false;
    }
    std::string_view left(text, static_cast<size_t>(length));
    for (size_t zero = 0; (zero = left.find('\0')) != std::string_view::npos;) {
      key->append(left.substr(0, zero + 1)).push_back('\1');  // unlike the end, which is two zeros
      left.remove_prefix(zero + 1);
    }
    key->append(left).append(2, '\0');
    return true;
  }
  if (PyLong_Check(id)) {
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(id, &overflow);
    if (overflow != 0) return false;
    const uint64_t biased = htobe64(static_cast<uint64_t>(value) ^ (uint64_t{1} << 63));
    key->append(reinterpret_cast<const char*>(&biased), sizeof(biased));
    return true;
  }
  if (id == Py_None) return true;
  if (!PyTuple_Check(id) || depth == kMaxDepth) return false;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(id); ++i) {
    key->push_back('\1');  // another one follows
    if (!AppendKey(PyTuple_GET_ITEM(id, i), depth + 1, key)) return false;
  }
  key->push_back('\0');
  return true;
}

// Keys in the order of their bytes. Those that agree so far are told apart by the next eight bytes that are not the
// same in all of them, which is a comparison of numbers.
class KeySort {
 public:
  struct Key {
    uint64_t head = 0;
    size_t begin = 0;
    size_t length = 0;
    uint32_t shard = 0;
  };

  explicit KeySort(std::string_view text) : text_(text) {}

  void Sort(absl::Span<Key> keys) const { Sort(keys, 0, 0); }

 private:
  static constexpr size_t kFew = 8;
  static constexpr int kMostLevels = 32;  // of the stack

  std::string_view Text(const Key& key) const { return text_.substr(key.begin, key.length); }

  // `keys` have the same first bytes, `same` of them.
  void Sort(absl::Span<Key> keys, size_t same, int level) const {
    size_t shortest = keys.front().length;
    for (const Key& key : keys) shortest = std::min(shortest, key.length);
    if (keys.size() <= kFew || level == kMostLevels || shortest < same + sizeof(uint64_t)) {
      std::sort(keys.begin(), keys.end(),
                [this](const Key& a, const Key& b) { return Text(a) < Text(b); });
      return;
    }
    size_t most = shortest - sizeof(uint64_t);  // where eight bytes are left
    const char* const first = text_.data() + keys.front().begin;
    for (const Key& key : keys.subspan(1)) {
      const char* const other = text_.data() + key.begin;
      most = static_cast<size_t>(std::mismatch(first + same, first + most, other + same).first -
                                 first);
    }
    for (Key& key : keys) {
      std::memcpy(&key.head, text_.data() + key.begin + most, sizeof(key.head));
      key.head = be64toh(key.head);
    }
    std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) { return a.head < b.head; });
    for (size_t begin = 0; begin < keys.size();) {
      size_t end = begin + 1;
      while (end < keys.size() && keys[end].head == keys[begin].head) ++end;
      if (end - begin > 1) {
        Sort(keys.subspan(begin, end - begin), most + sizeof(uint64_t), level + 1);
      }
      begin = end;
    }
  }

  const std::string_view text_;
};

// Orders shards by their ids, as Python's `<` does. Raises what that raises.
class IdOrder {
 public:
  IdOrder(const std::vector<Named>* shards, Held* objects) : shards_(*shards), objects_(*objects) {}

  void Sort(absl::Span<uint32_t> shards) const {
    if (SortByKeys(shards)) return;
    objects_.Now();
    std::sort(shards.begin(), shards.end(), [this](uint32_t a, uint32_t b) {
      const int less = PyObject_RichCompareBool(shards_[a].id, shards_[b].id, Py_LT);
      if (less < 0) throw py::error_already_set();
      return less != 0;
    });
  }

 private:
  // False: there are ids of other kinds among them.
  bool SortByKeys(absl::Span<uint32_t> shards) const {
    std::string text;
    std::vector<KeySort::Key> keys;
    keys.reserve(shards.size());
    for (size_t i = 0; i < shards.size(); ++i) {
      if (i + 3 * kAhead < shards.size()) {
        __builtin_prefetch(shards_[shards[i + 3 * kAhead]].id);
        PrefetchItems(shards_[shards[i + 2 * kAhead]].id);
        PrefetchText(shards_[shards[i + kAhead]].id);
      }
      const size_t begin = text.size();
      if (!AppendKey(shards_[shards[i]].id, 0, &text)) return false;
      keys.push_back({0, begin, text.size() - begin, shards[i]});
    }
    KeySort(text).Sort(absl::MakeSpan(keys));
    std::transform(keys.begin(), keys.end(), shards.begin(),
                   [](const KeySort::Key& key) { return key.shard; });
    return true;
  }

  const std::vector<Named>& shards_;
  Held& objects_;
};

// --- what the dictionaries say ----------------------------------------------------------------------

// A size or a rank: an int that fits, of the shard that an error names.
int64_t IntegerOf(PyObject* value, const char* what, PyObject* id, Held* objects) {
  if (const int64_t small = SmallInteger(value); small >= 0) return small;
  if (!PyLong_Check(value)) objects->Now();  // it takes __index__
  int overflow = 0;
  const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (overflow != 0 || number < 0) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat(what, ": ", Shown(value), " of shard ", Shown(id), " is not in 0 … 2^63-1")));
  }
  return number;
}

void AddHolders(int32_t num_ranks, Named* shard, std::vector<int32_t>* holders, Held* objects) {
  const py::object items = py::reinterpret_steal<py::object>(
      PySequence_Fast(shard->ranks, "shard_to_ranks: not a sequence"));
  if (!items) throw py::error_already_set();
  shard->holders_begin = holders->size();
  shard->holders = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  for (size_t i = 0; i < shard->holders; ++i) {
    if (PySequence_Fast_GET_SIZE(items.ptr()) <= static_cast<Py_ssize_t>(i)) {
      throw std::runtime_error("shard_to_ranks: a list has become shorter");
    }
    PyObject* const item = PySequence_Fast_GET_ITEM(items.ptr(), static_cast<Py_ssize_t>(i));
    const int64_t rank = IntegerOf(item, "shard_to_ranks", shard->id, objects);
    if (rank >= num_ranks) {
      Raise(absl::InvalidArgumentError(absl::StrCat("shard_to_ranks: rank ", rank, " of shard ",
                                                    Shown(shard->id), " is not in 0 … ",
                                                    num_ranks - 1)));
    }
    holders->push_back(static_cast<int32_t>(rank));
  }
  if (shard->holders == 0) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("shard_to_ranks: no rank holds shard ", Shown(shard->id))));
  }
}

// Looks ids up in a dictionary, at no cost where it has them in the same order.
class Sizes {
 public:
  explicit Sizes(const py::dict& sizes) : sizes_(sizes.ptr()) {}

  PyObject* Of(PyObject* id) {
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    if (in_order_ && PyDict_Next(sizes_, &at_, &key, &value) != 0 && key == id) return value;
    in_order_ = false;
    value = PyDict_GetItemWithError(sizes_, id);
    if (value == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (value == nullptr) {
      Raise(absl::InvalidArgumentError(absl::StrCat("shard_to_size: lacks shard ", Shown(id))));
    }
    return value;
  }

 private:
  PyObject* const sizes_;
  Py_ssize_t at_ = 0;
  bool in_order_ = true;
};

py::dict Owners(const std::vector<Named>& named, const std::vector<client::ShardOfRank>& given,
                int32_t num_ranks) {
  std::vector<py::object> numbers(static_cast<size_t>(std::max(num_ranks, 0)));  // of ranks
  py::dict owners;
  for (size_t i = 0; i < given.size(); ++i) {
    if (i + 3 * kAhead < given.size()) {  // the hash of an id is made of all that it holds
      __builtin_prefetch(named[given[i + 3 * kAhead].shard].id);
      PrefetchItems(named[given[i + 2 * kAhead].shard].id);
    }
    py::object& number = numbers[static_cast<size_t>(given[i].rank)];
    if (!number) number = py::reinterpret_steal<py::object>(PyLong_FromLong(given[i].rank));
    if (!number || PyDict_SetItem(owners.ptr(), named[given[i].shard].id, number.ptr()) != 0) {
      throw py::error_already_set();
    }
  }
  return owners;
}

py::dict DistributeShards(const py::dict& shard_to_ranks, const py::dict& shard_to_size,
                          int32_t num_ranks, const py::object& of_others) {
  Held objects(shard_to_ranks, shard_to_size);
  std::vector<Named> named;
  named.reserve(shard_to_ranks.size());
  Sizes sizes(shard_to_size);
  PyObject* id = nullptr;
  PyObject* ranks = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(shard_to_ranks.ptr(), &at, &id, &ranks) != 0;) {
    named.push_back({.id = id, .ranks = ranks, .size = sizes.Of(id)});
  }
  std::vector<int32_t> holders;
  holders.reserve(4 * named.size());
  // Ids of other kinds may have a __hash__ or an __eq__ of their own.
  const bool any_of_others = of_others && !of_others.is_none() && py::len(of_others) > 0;
  if (any_of_others) objects.Now();
  for (size_t i = 0; i < named.size(); ++i) {
    if (i + 3 * kAhead < named.size()) {
      __builtin_prefetch(named[i + 3 * kAhead].ranks);
      PrefetchList(named[i + 2 * kAhead].ranks);
      PrefetchItems(named[i + kAhead].ranks);
      __builtin_prefetch(named[i + kAhead].size);
    }
    Named& shard = named[i];
    AddHolders(num_ranks, &shard, &holders, &objects);
    shard.bytes = static_cast<uint64_t>(IntegerOf(shard.size, "shard_to_size", shard.id, &objects));
    shard.of_others = any_of_others && of_others.contains(py::handle(shard.id));
  }
  std::vector<HeldShard> held;
  held.reserve(named.size());
  for (const Named& shard : named) {
    held.push_back({shard.bytes,
                    absl::MakeConstSpan(holders).subspan(shard.holders_begin, shard.holders),
                    shard.of_others});
  }
  const IdOrder order(&named, &objects);
  auto given = client::BalanceShards(held, num_ranks,
                                     [&order](absl::Span<uint32_t> shards) { order.Sort(shards); });
  if (!given.ok()) Raise(given.status());
  return Owners(named, *given, num_ranks);
}

}  // namespace

void DefinePlanning(py::module_& module) {
  module.def("distribute_shards", &DistributeShards, py::arg("shard_to_ranks"),
             py::arg("shard_to_size"), py::arg("num_ranks"), py::arg("of_others"));
}

}  // namespace cairn::python
