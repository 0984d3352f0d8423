/* step_kinds.c: the normalizers, pre-tokenizers and decoders of a tokenizer.json, each made of
 * steps. */
#include "tokens/tokenizer_json.h"

typedef bool read_fn(const json_t *o, mti_steps *to);
typedef struct named_kind {
    const char *name;
    const char *keys; /* that it may have beside "type", each between blanks */
    read_fn *read;    /* NULL: one step, of this kind: */
    mti_step_kind step;
    int which;
    mti_char_fn *is;
} named_kind;
typedef struct section {
    const char *name, *parts; /* the key of a Sequence's list */
    const named_kind *kinds;
    size_t n;
} section;

/* ---- values of keys ---- */

bool mti_key_wrong(const char *key, const json_t *value, const char *need)
{
    char text[MTI_JSON_BEGIN];
    if (!value) return mti_fail_bool(MT_ERR_FORMAT, "\"%s\" is missing; need %s", key, need);
    return mti_fail_bool(MT_ERR_FORMAT, "\"%.60s\" is %s; need %s", key,
                         mti_json_begin(value, text), need);
}

bool mti_key_unknown(const char *where, const char *what)
{
    return mti_fail_bool(MT_ERR_UNSUPPORTED, "%s \"%.60s\" is not known here", where, what);
}

const json_t *mti_key_get(const json_t *o, const char *key)
{
    const json_t *value = json_object_get(o, key);
    return json_is_null(value) ? NULL : value;
}

bool mti_key_flag(const json_t *o, const char *key, bool otherwise, bool *out)
{
    const json_t *value = mti_key_get(o, key);
    *out = value ? json_is_true(value) : otherwise;
    return !value || json_is_boolean(value) || mti_key_wrong(key, value, "true or false");
}

bool mti_key_count(const json_t *o, const char *key, size_t *out)
{
    const json_t *value = mti_key_get(o, key);
    *out = (size_t)json_integer_value(value);
    return (json_is_integer(value) && json_integer_value(value) >= 0) ||
           mti_key_wrong(key, value, "a whole number from 0");
}

const char *mti_key_text(const json_t *o, const char *key, const char *otherwise)
{
    const json_t *value = mti_key_get(o, key);
    if (!value && otherwise) return otherwise;
    if (!json_is_string(value)) mti_key_wrong(key, value, "a string");
    return json_string_value(value);
}

bool mti_keys_only(const json_t *o, const char *what, const char *keys)
{
    char padded[80];
    for (void *at = json_object_iter((json_t *)o); at;
         at = json_object_iter_next((json_t *)o, at)) {
        const char *key = json_object_iter_key(at);
        snprintf(padded, sizeof padded, " %.70s ", key);
        if (strcmp(key, "type") && !strstr(keys, padded))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, "%.60s: the key \"%.60s\" is not known here",
                                 what, key);
    }
    return true;
}

/* ---- steps ---- */

static bool add(mti_steps *to, mti_step_kind kind, int which, const char *content)
{
    return mti_step_new(to, kind, which, content) != NULL;
}

static bool add_chars(mti_steps *to, mti_step_kind kind, mti_char_fn *is, int which)
{
    mti_text_step *step = mti_step_new(to, kind, which, "");
    if (step) step->pattern.is = is;
    return step != NULL;
}

static bool add_pattern(mti_steps *to, mti_step_kind kind, int which, const char *content,
                        const char *literal, const char *regular)
{
    mti_text_step *step = mti_step_new(to, kind, which, content);
    const char *text = literal ? literal : regular;
    const size_t n = strlen(text);
    return step && (literal ? mti_text_add(&step->pattern.literal, text, n)
                            : mti_pattern_compile(&step->pattern, text, n));
}

static bool read_pattern(const json_t *o, mti_steps *to, mti_step_kind kind, int which,
                         const char *content)
{
    const json_t *pattern = mti_key_get(o, "pattern");
    const char *literal = json_string_value(json_object_get(pattern, "String"));
    const char *regular = json_string_value(json_object_get(pattern, "Regex"));
    if (!literal && !regular)
        return mti_key_wrong("pattern", pattern, "{\"String\": ...} or {\"Regex\": ...}");
    return add_pattern(to, kind, which, content, literal, regular);
}

static bool read_behavior(const json_t *o, int *out)
{
    static const char *const names[] = {"Removed", "Isolated", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = mti_key_text(o, "behavior", "Isolated");
    for (int i = 0; name && i < 5; i++)
        if (!strcmp(names[i], name)) return *out = i, true;
    return name && mti_key_unknown("behavior", name);
}

/* ---- normalizers ---- */

static bool read_bert_normalizer(const json_t *o, mti_steps *to)
{
    bool clean, ideographs, lower, accents;
    return mti_key_flag(o, "clean_text", true, &clean) &&
           mti_key_flag(o, "handle_chinese_chars", true, &ideographs) &&
           mti_key_flag(o, "lowercase", true, &lower) &&
           mti_key_flag(o, "strip_accents", lower, &accents) &&
           (!clean || add(to, MTI_CLEAN, 0, "")) &&
           (!ideographs || add(to, MTI_IDEOGRAPHS, 0, "")) &&
           (!accents ||
            (add(to, MTI_FORM, MTI_NFD, "") && add_chars(to, MTI_DROP, mti_char_is_accent, 0))) &&
           (!lower || add(to, MTI_LOWER, 0, ""));
}

static bool read_replace(const json_t *o, mti_steps *to)
{
    const char *content = mti_key_text(o, "content", NULL);
    return content && read_pattern(o, to, MTI_REPLACE, 0, content);
}

static bool read_prepend(const json_t *o, mti_steps *to)
{
    const char *content = mti_key_text(o, "prepend", NULL);
    return content && add(to, MTI_PREPEND, MTI_ALWAYS, content);
}

static bool read_trim(const json_t *o, mti_steps *to)
{
    bool left, right;
    mti_text_step *step = NULL;
    if (mti_key_flag(o, "strip_left", true, &left) && mti_key_flag(o, "strip_right", true, &right))
        step = mti_step_new(to, MTI_TRIM, 0, "");
    if (step) step->start = left, step->stop = right;
    return step != NULL;
}

/* ---- pre-tokenizers ---- */

static bool read_byte_level(const json_t *o, mti_steps *to)
{
    bool blank, pattern;
    return mti_key_flag(o, "add_prefix_space", true, &blank) &&
           mti_key_flag(o, "use_regex", true, &pattern) &&
           (!blank || add(to, MTI_PREPEND, MTI_UNLESS_THERE, " ")) &&
           (!pattern || add_pattern(to, MTI_SPLIT, MTI_ISOLATED, "", NULL, MTI_GPT2_PATTERN)) &&
           add(to, MTI_BYTES, 0, "");
}

static bool read_split(const json_t *o, mti_steps *to)
{
    int behavior;
    bool invert;
    if (!mti_key_flag(o, "invert", false, &invert) || !read_behavior(o, &behavior) ||
        !read_pattern(o, to, MTI_SPLIT, behavior, ""))
        return false;
    to->at[to->n - 1].invert = invert;
    return true;
}

static bool read_digits(const json_t *o, mti_steps *to)
{
    bool each;
    return mti_key_flag(o, "individual_digits", false, &each) &&
           add_chars(to, MTI_SPLIT, mti_char_is_number, each ? MTI_ISOLATED : MTI_CONTIGUOUS);
}

static bool read_punctuation(const json_t *o, mti_steps *to)
{
    int behavior;
    return read_behavior(o, &behavior) &&
           add_chars(to, MTI_SPLIT, mti_char_is_punctuation, behavior);
}

static bool read_bert(const json_t *o, mti_steps *to)
{
    (void)o;
    return add_chars(to, MTI_SPLIT, mti_char_is_space, MTI_REMOVED) &&
           add_chars(to, MTI_SPLIT, mti_char_is_punctuation, MTI_ISOLATED);
}

static bool read_whitespace(const json_t *o, mti_steps *to)
{
    (void)o;
    if (!add_pattern(to, MTI_SPLIT, MTI_REMOVED, "", NULL,
                     "[\\w\\u200C\\u200D]+|[^\\w\\u200C\\u200D\\s]+"))
        return false;
    to->at[to->n - 1].invert = true;
    return true;
}

static bool read_delimiter(const json_t *o, mti_steps *to)
{
    const char *delimiter = mti_key_text(o, "delimiter", NULL);
    return delimiter && add_pattern(to, MTI_SPLIT, MTI_REMOVED, "", delimiter, NULL);
}

/* The blank's stand-in, and where it is prepended: "never", "first" or "always". */
static bool get_metaspace(const json_t *o, const char **blank, const char **scheme)
{
    bool always;
    if (!mti_key_flag(o, "add_prefix_space", true, &always) ||
        !(*blank = mti_key_text(o, "replacement", NULL)) ||
        !(*scheme = mti_key_text(o, "prepend_scheme", always ? "always" : "never")))
        return false;
    if (!**blank) return mti_key_wrong("replacement", mti_key_get(o, "replacement"), "a character");
    return !strcmp(*scheme, "always") || !strcmp(*scheme, "first") || !strcmp(*scheme, "never") ||
           mti_key_unknown("prepend_scheme", *scheme);
}

static bool read_metaspace(const json_t *o, mti_steps *to)
{
    const char *blank, *scheme;
    bool cut;
    if (!get_metaspace(o, &blank, &scheme) || !mti_key_flag(o, "split", true, &cut)) return false;
    const int when = *scheme == 'a' ? MTI_UNLESS_THERE : MTI_FIRST_ALONE;
    return add_pattern(to, MTI_REPLACE, 0, blank, " ", NULL) &&
           (*scheme == 'n' || add(to, MTI_PREPEND, when, blank)) &&
           (!cut || add_pattern(to, MTI_SPLIT, MTI_WITH_NEXT, "", blank, NULL));
}

/* ---- decoders ---- */

static bool read_strip(const json_t *o, mti_steps *to)
{
    const char *content = mti_key_text(o, "content", NULL);
    size_t begin, end;
    if (!content || !mti_key_count(o, "start", &begin) || !mti_key_count(o, "stop", &end))
        return false;
    if (!*content) return mti_key_wrong("content", mti_key_get(o, "content"), "a character");
    mti_text_step *step = mti_step_new(to, MTI_STRIP, 0, content);
    if (step) step->start = begin, step->stop = end;
    return step != NULL;
}

static bool read_blanks(const json_t *o, mti_steps *to)
{
    const char *blank, *scheme;
    mti_text_step *step = NULL;
    if (get_metaspace(o, &blank, &scheme)) step = mti_step_new(to, MTI_BLANKS, 0, blank);
    if (step) step->start = *scheme != 'n';
    return step != NULL;
}

static bool read_words(const json_t *o, mti_steps *to)
{
    bool cleanup;
    const char *prefix = mti_key_text(o, "prefix", "##");
    mti_text_step *step = NULL;
    if (prefix && mti_key_flag(o, "cleanup", true, &cleanup))
        step = mti_step_new(to, MTI_WORDS, 0, prefix);
    if (step) step->cleanup = cleanup;
    return step != NULL;
}

/* ---- sections ---- */

#define BYTE_LEVEL " add_prefix_space trim_offsets use_regex "
#define METASPACE  " replacement prepend_scheme split add_prefix_space str_rep "

static const named_kind normalizers[] = {
    {"NFC", "", NULL, MTI_FORM, MTI_NFC},
    {"NFD", "", NULL, MTI_FORM, MTI_NFD},
    {"NFKC", "", NULL, MTI_FORM, MTI_NFKC},
    {"NFKD", "", NULL, MTI_FORM, MTI_NFKD},
    {"Lowercase", "", NULL, MTI_LOWER},
    {"StripAccents", "", NULL, MTI_DROP, 0, mti_char_is_mark},
    {"ByteLevel", "", NULL, MTI_BYTES},
    {"BertNormalizer", " clean_text handle_chinese_chars strip_accents lowercase ",
     read_bert_normalizer},
    {"Replace", " pattern content ", read_replace},
    {"Prepend", " prepend ", read_prepend},
    {"Strip", " strip_left strip_right ", read_trim},
};
static const named_kind pre_tokenizers[] = {
    {"ByteLevel", BYTE_LEVEL, read_byte_level},
    {"Split", " pattern behavior invert ", read_split},
    {"Digits", " individual_digits ", read_digits},
    {"Metaspace", METASPACE, read_metaspace},
    {"BertPreTokenizer", "", read_bert},
    {"Whitespace", "", read_whitespace},
    {"WhitespaceSplit", "", NULL, MTI_SPLIT, MTI_REMOVED, mti_char_is_space},
    {"Punctuation", " behavior ", read_punctuation},
    {"CharDelimiterSplit", " delimiter ", read_delimiter},
};
static const named_kind decoders[] = {
    {"ByteLevel", BYTE_LEVEL, NULL, MTI_BYTES},    {"Replace", " pattern content ", read_replace},
    {"ByteFallback", "", NULL, MTI_BYTE_TOKENS},   {"Fuse", "", NULL, MTI_FUSE},
    {"Strip", " content start stop ", read_strip}, {"Metaspace", METASPACE, read_blanks},
    {"WordPiece", " prefix cleanup ", read_words},
};
#define KINDS(list) list, sizeof list / sizeof *list
static const section sections[] = {{"normalizer", "normalizers", KINDS(normalizers)},
                                   {"pre_tokenizer", "pretokenizers", KINDS(pre_tokenizers)},
                                   {"decoder", "decoders", KINDS(decoders)}};

static bool read_section(const section *s, const json_t *o, mti_steps *to)
{
    if (!o || json_is_null(o)) return true;
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!type) return mti_key_wrong(s->name, o, "an object with a \"type\"");
    if (!strcmp(type, "Sequence")) {
        const json_t *parts = json_object_get(o, s->parts);
        if (!json_is_array(parts)) return mti_key_wrong(s->parts, parts, "a list");
        for (size_t i = 0; i < json_array_size(parts); i++)
            if (!read_section(s, json_array_get(parts, i), to)) return false;
        return true;
    }
    for (size_t i = 0; i < s->n; i++) {
        const named_kind *k = &s->kinds[i];
        if (strcmp(k->name, type)) continue;
        if (!mti_keys_only(o, type, k->keys)) return false;
        return k->read ? k->read(o, to) : add_chars(to, k->step, k->is, k->which);
    }
    return mti_key_unknown(s->name, type);
}

bool mti_steps_read(mti_section which, const json_t *o, mti_steps *to)
{
    return read_section(&sections[which], o, to);
}
