/* Tokenizers from small files: what they make of texts, by hand; files that are damaged or ask for
 * what is not known; and refused memory. test_huggingface.py compares whole families. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/base.h"
#include "files/json_text.h"
#include "mtt.h"
#include "mtt_fixture.h"
#include "encoded.h"

/* ---- files ---- */

/* Byte-level BPE over a few letters. */
static const char letters[] =
    "{'version':'1.0','truncation':null,'padding':null,'added_tokens':[{'id':12,'content':'<s>',"
    "'single_word':false,'lstrip':false,'rstrip':false,'normalized':false,'special':true}],"
    "'normalizer':null,'pre_tokenizer':{'type':'ByteLevel','add_prefix_space':false,'trim_offsets':"
    "true,'use_regex':true},'post_processor':{'type':'TemplateProcessing','single':[{'SpecialToken'"
    ":{'id':'<s>','type_id':0}},{'Sequence':{'id':'A','type_id':0}}],'pair':[],'special_tokens':{"
    "'<s>':{'id':'<s>','ids':[12],'tokens':['<s>']}}},'decoder':{'type':'ByteLevel',"
    "'add_prefix_space':true,'trim_offsets':true,'use_regex':true},'model':{'type':'BPE','dropout':"
    "null,'unk_token':null,'continuing_subword_prefix':null,'end_of_word_suffix':null,'fuse_unk':"
    "false,'byte_fallback':false,'ignore_merges':false,'vocab':{'l':0,'o':1,'w':2,'e':3,'r':4,"
    "'\u0120':5,'lo':6,'low':7,'er':8,'\u0120low':9,'\u00c3':10,'\u00a9':11,'ll':13},'merges':["
    "'l o','lo w',['e','r'],'\u0120 low','l l']}}";

/* Characters with byte fallback, as of SentencePiece. */
static const char pieces[] =
    "{'added_tokens':[{'id':0,'content':'<unk>','special':true},{'id':1,'content':'<s>','special':"
    "true}],'normalizer':{'type':'Sequence','normalizers':[{'type':'Prepend','prepend':'\u2581'},"
    "{'type':'Replace','pattern':{'String':' '},'content':'\u2581'}]},'pre_tokenizer':null,"
    "'post_processor':null,'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{"
    "'String':'\u2581'},'content':' '},{'type':'ByteFallback'},{'type':'Fuse'},{'type':'Strip',"
    "'content':' ','start':1,'stop':0}]},'model':{'type':'BPE','unk_token':'<unk>','fuse_unk':true,"
    "'byte_fallback':true,'vocab':{'<unk>':0,'<s>':1,'<0xE2>':2,'<0x82>':3,'<0xAC>':4,'a':5,'b':6,"
    "'\u2581':7,'ab':8,'\u2581ab':9},'merges':['a b','\u2581 ab']}}";

static const char words[] =
    "{'added_tokens':[],'normalizer':{'type':'BertNormalizer','clean_text':true,"
    "'handle_chinese_chars':true,'strip_accents':null,'lowercase':true},'pre_tokenizer':{'type':"
    "'BertPreTokenizer'},'post_processor':{'type':'BertProcessing','sep':['[SEP]',2],'cls':['[CLS]'"
    ",1]},'decoder':{'type':'WordPiece','prefix':'##','cleanup':true},'model':{'type':'WordPiece',"
    "'unk_token':'[UNK]','continuing_subword_prefix':'##','max_input_chars_per_word':8,'vocab':{"
    "'[UNK]':0,'[CLS]':1,'[SEP]':2,'un':3,'##able':4,'unable':5,'.':6,'##s':7,'\u4e2d':8,'e':9}}}";

/* JSON with ' for ", to be freed. */
static char *quoted(const char *text)
{
    char *out = strdup(text);
    for (char *c = out; *c; c++)
        if (*c == '\'') *c = '"';
    return out;
}

static json_t *read_json(const char *text)
{
    char *json = quoted(text);
    json_error_t error;
    json_t *root = mti_json_read(json, strlen(json), &error);
    if (!root) fail_msg("%s: %s", text, error.text);
    free(json);
    return root;
}

/* The tokenizer of a text in which the keys of `path`, such as "model.vocab", have another value;
 * "-" takes the last one out. */
static mt_tokenizer *changed(const char *text, const char *path, const char *value)
{
    char keys[64], list[2048];
    json_t *root = read_json(text), *at = root;
    snprintf(keys, sizeof keys, "%s", path ? path : "");
    char *key = strtok(keys, "."), *next;
    for (; key && (next = strtok(NULL, ".")); key = next) at = json_object_get(at, key);
    snprintf(list, sizeof list, "[%s]", value && strcmp(value, "-") ? value : "0");
    json_t *values = read_json(list);
    if (key && strcmp(value, "-"))
        json_object_set(at, key, json_array_get(values, 0));
    else if (key)
        json_object_del(at, key);
    char *json = mti_json_text(root, 0);
    json_decref(values), json_decref(root);
    mt_tokenizer *t = mti_tokenizer_parse("made", json, strlen(json));
    mti_free(json);
    return t;
}

static mt_tokenizer *made(const char *text, const char *path, const char *value)
{
    mt_tokenizer *t = changed(text, path, value);
    if (!t) fail_msg("%s: %s", path ? path : "as it is", mt_last_error());
    return t;
}

/* ---- what texts become ---- */

static void merges_apply_by_rank_and_bytes_come_back(void **state)
{
    (void)state;
    mt_tokenizer *t = made(letters, NULL, NULL);
    assert_int_equal(mt_tokenizer_size(t), 14);
    is_encoded(t, "low lower", "7 9 8");
    is_encoded(t, "lllll", "13 13 0"); /* the leftmost first */
    is_encoded(t, "llow", "0 7");      /* "l o" comes before "l l" */
    is_encoded(t, "\xC3\xA9", "10 11");
    is_encoded(t, "", "");
    is_encoded(t, "low<s>low", "7 12 7");
    assert_string_equal(ids_of(t, "low", 3, true), "12 7");
    assert_string_equal(text_of(t, LIST(12, 7, 9, 8, 10, 11), true), "low lower\xC3\xA9");
    assert_string_equal(text_of(t, LIST(12, 7), false), "<s>low");
    assert_string_equal(text_of(t, LIST(10, 7), true), "\xEF\xBF\xBDlow"); /* half a character */
    mt_tokenizer_free(t);
}

static void a_vocabulary_answers_both_ways(void **state)
{
    (void)state;
    mt_tokenizer *t = made(letters, NULL, NULL);
    size_t n;
    assert_int_equal(mt_tokenizer_id(t, "\xC4\xA0low"), 9);
    assert_int_equal(mt_tokenizer_id(t, "nothing"), -1);
    assert_string_equal(mt_tokenizer_token(t, 9, &n), "\xC4\xA0low");
    assert_int_equal(n, 5);
    assert_null(mt_tokenizer_token(t, 14, NULL));
    assert_null(mt_tokenizer_token(t, -1, NULL));
    assert_true(mt_tokenizer_is_special(t, 12) && !mt_tokenizer_is_special(t, 7));
    assert_true(mt_tokenizer_ends(t, NULL) == 0 && !mt_tokenizer_chat_template(t));
    mt_token_list ids = {0};
    mt_text text = {0};
    assert_int_equal(mt_tokenizer_decode(t, (int64_t[]){7, 14}, 2, true, &text), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "no token 14", "0 to 13");
    assert_int_equal(mt_tokenizer_encode(t, NULL, 3, true, &ids), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the text is NULL");
    assert_int_equal(mt_tokenizer_encode(t, "", (size_t)1 << 40, true, &ids), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "at most 2 GiB");
    assert_true(ids.n == 0 && text.n == 0);
    mt_text_free(&text);
    mt_tokenizer_free(t);
}

static void each_part_that_is_not_utf8_becomes_one_replacement(void **state)
{
    (void)state;
    static const struct { /* as Python's decode("utf-8", "replace") counts them */
        const char *bytes;
        size_t n, replaced;
    } rows[] = {
        {"a\xFFz", 3, 1},           {"\xE2\x82", 2, 1},         {"\xE2\x82\xE2\x82\xAC", 5, 1},
        {"\xED\xA0\x80", 3, 3},     {"\xC0\xAF", 2, 2},         {"\xF0\x9F\x98x", 4, 1},
        {"\xF4\x90\x80\x80", 4, 4}, {"\xE0\x80\xE0\xA0", 4, 3}, {"\x80\xC3", 2, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mt_text text = {0};
        size_t found = 0;
        assert_true(mti_text_repaired(&text, rows[i].bytes, rows[i].n, false, NULL));
        assert_true(mti_is_utf8(text.at));
        for (const char *at = text.at; (at = strstr(at, "\xEF\xBF\xBD")); at += 3) found++;
        assert_int_equal(found, rows[i].replaced);
        mt_text_free(&text);
    }
}

static void added_tokens_take_blanks_or_stand_alone_as_they_say(void **state)
{
    (void)state;
    mt_tokenizer *t = made(
        letters, "added_tokens",
        "[{'id':14,'content':'<l>','lstrip':true,'rstrip':true},{'id':12,'content':'<s>',"
        "'special':true},{'id':7,'content':'low','single_word':true},{'id':15,'content':'<l'}]");
    is_encoded(t, "w  <l> \n w", "2 14 2");
    is_encoded(t, "w<lw", "2 15 2");      /* a shorter one, where the longer does not stand */
    is_encoded(t, "lowe low", "7 3 5 7"); /* by merges; by itself, and so not the blank's */
    assert_string_equal(text_of(t, LIST(2, 14, 2), true), "w<l>w");
    mt_tokenizer_free(t);
}

static void bytes_stand_for_characters_without_a_token(void **state)
{
    (void)state;
    mt_tokenizer *t = made(pieces, NULL, NULL);
    is_encoded(t, "ab ab", "9 9");
    is_encoded(t, "\xE2\x82\xAC", "7 2 3 4");
    is_encoded(t, "azzb", "7 5 0 6"); /* unknown ones side by side are one */
    is_encoded(t, "a<s>b", "7 5 1 7 6");
    assert_string_equal(text_of(t, LIST(9, 9, 2, 3, 4), true), "ab ab\xE2\x82\xAC");
    assert_string_equal(text_of(t, LIST(2, 3, 5), true), "\xEF\xBF\xBD\xEF\xBF\xBD"
                                                         "a");
    mt_tokenizer_free(t);
}

static void a_stream_gives_whole_characters_as_soon_as_it_can(void **state)
{
    (void)state;
    mt_tokenizer *t = made(pieces, NULL, NULL);
    static const struct {
        int64_t id;
        const char *text; /* that comes out with it */
    } rows[] = {{1, ""},
                {9, "ab"},
                {9, " ab"},
                {2, ""},
                {3, ""},
                {4, "\xE2\x82\xAC"},
                {2, ""},
                {5, "\xEF\xBF\xBD"
                    "a"},
                {2, ""}};
    mt_token_stream *s = mt_token_stream_new(t, true);
    mt_text text = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t before = text.n;
        mtt_ok(mt_token_stream_next(s, rows[i].id, &text));
        assert_string_equal(text.at ? text.at + before : "", rows[i].text);
    }
    assert_int_equal(mt_token_stream_next(s, 99, &text), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "no token 99");
    mtt_ok(mt_token_stream_end(s, &text));
    assert_string_equal(text.at, "ab ab\xE2\x82\xAC\xEF\xBF\xBD"
                                 "a\xEF\xBF\xBD");
    text.n = 0;
    mtt_ok(mt_token_stream_next(s, 9, &text)); /* a new text */
    assert_string_equal(text.at, "ab");
    mt_token_stream_free(s);
    mt_text_free(&text);
    mt_tokenizer_free(t);
}

static void words_are_their_longest_pieces(void **state)
{
    (void)state;
    mt_tokenizer *t = made(words, NULL, NULL);
    is_encoded(t, "Unable", "5");
    is_encoded(t, "unables unS\t.", "5 7 3 7 6");
    is_encoded(t, "unx", "0");       /* no piece of what is left: all of the word is unknown */
    is_encoded(t, "unableabl", "0"); /* longer than max_input_chars_per_word */
    is_encoded(t, "\xE4\xB8\xAD\xE4\xB8\xAD", "8 8");
    is_encoded(t, "\xC3\x89\x07", "9"); /* É without its accent, and no control */
    assert_string_equal(ids_of(t, "un", 2, true), "1 3 2");
    assert_string_equal(text_of(t, LIST(3, 4, 7, 6), true), "unables.");
    mt_tokenizer_free(t);
}

/* Neither linear scans for each merge nor a recursion: minutes, or a stack that overflows. */
static void a_word_of_a_million_letters_is_merged(void **state)
{
    (void)state;
    mt_tokenizer *t = made(letters, NULL, NULL);
    mt_token_list ids = {0};
    const size_t n = 1000001;
    char *word = malloc(n);
    memset(word, 'l', n);
    mtt_ok(mt_tokenizer_encode(t, word, n, false, &ids));
    assert_int_equal(ids.n, n / 2 + 1);
    assert_true(ids.at[0] == 13 && ids.at[n / 2] == 0);
    free(word);
    mt_token_list_free(&ids);
    mt_tokenizer_free(t);
}

/* ---- what is refused ---- */

static const struct refusal {
    const char *text, *path, *value;
    mt_status status;
    const char *word;
} refusals[] = {
    {letters, "model", "-", MT_ERR_FORMAT, "\"model\" is missing; need an object"},
    {letters, "model.vocab", "-", MT_ERR_FORMAT, "\"vocab\" is missing"},
    {letters, "model.vocab", "[1]", MT_ERR_FORMAT, "\"vocab\" is [1]"},
    {letters, "model.vocab", "{'a':1099511627776}", MT_ERR_FORMAT, "\"a\" is 1099511627776"},
    {letters, "model.vocab", "{'a':-1}", MT_ERR_FORMAT, "\"a\" is -1"},
    {letters, "model.vocab", "{'a':0.5}", MT_ERR_FORMAT, "\"a\" is 0.5; need the id of a token"},
    {letters, "model.vocab", "{'a':3,'b':3}", MT_ERR_FORMAT, "both have the id 3"},
    {letters, "model.merges", "-", MT_ERR_FORMAT, "\"merges\" is missing"},
    {letters, "model.merges", "['l']", MT_ERR_FORMAT, "need two tokens"},
    {letters, "model.merges", "['l l l']", MT_ERR_FORMAT, "need two tokens"},
    {letters, "model.merges", "[['l',5]]", MT_ERR_FORMAT, "need two tokens"},
    {letters, "model.merges", "['o l']", MT_ERR_FORMAT, "make a third"}, /* "ol" is no token */
    {letters, "model.merges", "[{}]", MT_ERR_FORMAT, "need two tokens"},
    {letters, "model.dropout", "0.1", MT_ERR_FORMAT, "\"dropout\" is 0.1"},
    {letters, "model.unk_token", "'?'", MT_ERR_FORMAT, "not in \"vocab\""},
    {letters, "model.fuse_unk", "3", MT_ERR_FORMAT, "need true or false"},
    {letters, "model.future", "1", MT_ERR_UNSUPPORTED, "the key \"future\""},
    {letters, "model.type", "'Unigram'", MT_ERR_UNSUPPORTED, "model \"Unigram\" is not known here"},
    {letters, "model.type", "'WordLevel'", MT_ERR_UNSUPPORTED, "model \"WordLevel\""},
    {letters, "added_tokens", "5", MT_ERR_FORMAT, "\"added_tokens\" is 5; need a list"},
    {letters, "added_tokens", "[7]", MT_ERR_FORMAT, "need objects"},
    {letters, "added_tokens", "[{'id':14}]", MT_ERR_FORMAT, "\"content\" is missing"},
    {letters, "added_tokens", "[{'content':'x'}]", MT_ERR_FORMAT, "\"id\" is missing"},
    {letters, "added_tokens", "[{'id':99,'content':'low'}]", MT_ERR_FORMAT, "the ids 7 and 99"},
    {letters, "added_tokens", "[{'id':7,'content':'x'}]", MT_ERR_FORMAT, "both have the id 7"},
    {letters, "added_tokens", "[{'id':1099511627776,'content':'x'}]", MT_ERR_FORMAT,
     "1099511627776"},
    {letters, "added_tokens", "[{'id':14,'content':'x','weight':1}]", MT_ERR_UNSUPPORTED, "weight"},
    {letters, "normalizer", "{'type':'Nmt'}", MT_ERR_UNSUPPORTED, "normalizer \"Nmt\""},
    {letters, "normalizer", "{'type':'Precompiled','precompiled_charsmap':''}", MT_ERR_UNSUPPORTED,
     "Precompiled"},
    {letters, "normalizer", "{}", MT_ERR_FORMAT, "an object with a \"type\""},
    {letters, "normalizer", "{'type':'Sequence'}", MT_ERR_FORMAT, "\"normalizers\" is missing"},
    {letters, "normalizer", "{'type':'Replace','content':''}", MT_ERR_FORMAT,
     "\"pattern\" is missing"},
    {letters, "normalizer", "{'type':'Prepend'}", MT_ERR_FORMAT, "\"prepend\" is missing"},
    {letters, "pre_tokenizer", "{'type':'UnicodeScripts'}", MT_ERR_UNSUPPORTED, "UnicodeScripts"},
    {letters, "pre_tokenizer", "{'type':'Metaspace','replacement':'_','prepend_scheme':'x'}",
     MT_ERR_UNSUPPORTED, "\"x\""},
    {letters, "pre_tokenizer", "{'type':'Split','pattern':{'String':'a'},'behavior':'Odd'}",
     MT_ERR_UNSUPPORTED, "behavior \"Odd\""},
    {letters, "decoder", "{'type':'CTC'}", MT_ERR_UNSUPPORTED, "decoder \"CTC\""},
    {letters, "decoder", "{'type':'Strip','content':'','start':1,'stop':0}", MT_ERR_FORMAT,
     "a character"},
    {letters, "decoder", "{'type':'Strip','content':' ','start':-1,'stop':0}", MT_ERR_FORMAT,
     "\"start\" is -1"},
    {letters, "post_processor", "{'type':'Odd'}", MT_ERR_UNSUPPORTED, "post_processor \"Odd\""},
    {letters, "post_processor.single", "[]", MT_ERR_FORMAT, "the text \"A\" once"},
    {letters, "post_processor.single", "[{'Sequence':{'id':'B'}}]", MT_ERR_FORMAT, "\"A\""},
    {letters, "post_processor.special_tokens", "{}", MT_ERR_FORMAT,
     "the ids of the template's tokens"},
    {letters, "post_processor.special_tokens", "{'<s>':{'ids':[99]}}", MT_ERR_FORMAT,
     "the id of a token"},
    {letters, "post_processor", "{'type':'BertProcessing','sep':['x',99],'cls':['x',0]}",
     MT_ERR_FORMAT, "the id of a token"},
    {letters, "extra", "1", MT_ERR_UNSUPPORTED, "the key \"extra\""},
    {words, "model.unk_token", "'x'", MT_ERR_FORMAT, "not in \"vocab\""},
    {words, "model.max_input_chars_per_word", "-", MT_ERR_FORMAT, "max_input_chars_per_word"},
};

static void a_damaged_or_unknown_file_is_refused_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *r = &refusals[i];
        if (changed(r->text, r->path, r->value)) fail_msg("%s %s is taken", r->path, r->value);
        mtt_failed(r->status, r->word);
    }
}

static void an_added_token_has_a_most_of_bytes(void **state)
{
    (void)state;
    char list[MTI_ADDED_BYTES + 64], text[MTI_ADDED_BYTES + 2] = "";
    for (int more = 0; more < 2; more++) {
        memset(text, 'x', MTI_ADDED_BYTES + more);
        snprintf(list, sizeof list, "[{'id':12,'content':'<s>'},{'id':14,'content':'%s'}]", text);
        mt_tokenizer *t = changed(letters, "added_tokens", list);
        assert_true((t == NULL) == more);
        mt_tokenizer_free(t);
    }
    mtt_failed(MT_ERR_UNSUPPORTED, "xxx...", "1025 bytes; at most 1024");
}

static void a_text_that_is_no_json_is_refused(void **state)
{
    (void)state;
    const size_t n = 10 << 20;
    char *deep = malloc(n);
    memset(deep, '[', n);
    assert_null(mti_tokenizer_parse("deep", deep, n));
    mtt_failed(MT_ERR_FORMAT, "deep: not JSON: line 1");
    free(deep);
    static const char *const texts[] = {"", "{", "[1]", "{\"model\":{\"vocab\":{\"\xFF\":0}}}",
                                        "{\"model\":\"\\u0000\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_null(mti_tokenizer_parse("text", texts[i], strlen(texts[i])));
        mtt_failed(MT_ERR_FORMAT, i == 2 ? "an object" : "line 1");
    }
}

static void patterns_that_pcre2_reads_otherwise_are_refused(void **state)
{
    (void)state;
    static const char *const unknown[] = {
        "[a-z&&[^b]]", "[[:alpha:]]", "[a[^b]]", "\\bx",  "\\h",   "(a)\\1", "(?<n>a)",
        "(?m:a)",      "x(?i)a",      "a{2}+",   "a{,3}", "\\xE9", "[\\W]",  "a*",
        "(?=a)",       "\\v",         "\\K",     "\\R",   "[\\A]", "a{1}?"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        mti_pattern p = {0};
        if (mti_pattern_compile(&p, unknown[i], strlen(unknown[i])))
            fail_msg("%s is taken", unknown[i]);
        mtt_failed(MT_ERR_UNSUPPORTED, "is not known here");
        mti_pattern_free(&p);
    }
    static const char *const damaged[] = {"(", "[a", "a)", "\\p{Xyz}", "(?<=a+)b", "*a"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        mti_pattern p = {0};
        assert_false(mti_pattern_compile(&p, damaged[i], strlen(damaged[i])));
        mtt_failed(MT_ERR_FORMAT, damaged[i]);
        mti_pattern_free(&p);
    }
}

/* Blanks are Unicode's White_Space: of these PCRE2's \s takes U+180E, too. */
static void blanks_of_a_pattern_are_unicodes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is;
    } rows[] = {{"\xC2\x85", true},      {"\xE1\xA0\x8E", false}, {"\xEF\xBB\xBF", false},
                {"\xE2\x80\x8B", false}, {"\xE3\x80\x80", true},  {"\xC2\xA0", true},
                {"\x1C", false},         {"\x0B", true}};
    static const char *const patterns[] = {"\\s", "[\\s]", "\\S", "[\\S]"};
    mti_matcher m;
    assert_true(mti_matcher_open(&m));
    for (int k = 0; k < 4; k++) {
        mti_pattern p = {0};
        assert_true(mti_pattern_compile(&p, patterns[k], strlen(patterns[k])));
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            size_t begin = 0, end;
            assert_int_equal(
                mti_pattern_find(&p, &m, rows[i].text, strlen(rows[i].text), &begin, &end),
                rows[i].is == (k < 2));
        }
        mti_pattern_free(&p);
    }
    mti_matcher_close(&m);
}

static void a_pattern_that_backtracks_without_end_is_an_error(void **state)
{
    (void)state;
    mt_tokenizer *t = made(letters, "pre_tokenizer",
                           "{'type':'Split','pattern':{'Regex':'(?:l|ll)+[wo]'},'behavior':'"
                           "Isolated','invert':false}");
    mt_token_list ids = {0};
    char text[200];
    memset(text, 'l', sizeof text);
    assert_int_equal(mt_tokenizer_encode(t, text, sizeof text, false, &ids), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "match limit");
    assert_int_equal(ids.n, 0);
    mt_token_list_free(&ids);
    mt_tokenizer_free(t);
}

/* ---- folders ---- */

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[MTT_PATH + 32], *json = quoted(text);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(json, f);
    assert_int_equal(fclose(f), 0);
    free(json);
}

static void a_folder_says_what_ends_a_text_and_has_a_template(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer.json", "generation_config.json",
                                        "tokenizer_config.json", "chat_template.jinja",
                                        "tokenizer.model"};
    char folder[MTT_PATH], path[MTT_PATH + 32];
    const int64_t *ends;
    mtt_temporary_file(folder);
    unlink(folder);
    assert_null(mt_tokenizer_open(folder));
    mtt_failed(MT_ERR_IO, folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    write_file(folder, "tokenizer.model", "");
    assert_null(mt_tokenizer_open(folder));
    mtt_failed(MT_ERR_IO, "no tokenizer.json", "save_pretrained");
    write_file(folder, "tokenizer.json", letters);
    write_file(folder, "generation_config.json", "{'eos_token_id':[9,4000,7]}");
    write_file(folder, "tokenizer_config.json",
               "{'eos_token':{'content':'<s>'},'chat_template':[{'name':'x','template':'no'},{'"
               "name':'default','template':'old'}]}");
    mt_tokenizer *t = mt_tokenizer_open(folder);
    assert_non_null(t);
    assert_int_equal(mt_tokenizer_ends(t, &ends), 3); /* 4000 is a row without a token */
    assert_true(ends[0] == 9 && ends[1] == 7 && ends[2] == 12);
    assert_string_equal(mt_tokenizer_chat_template(t), "old");
    mt_tokenizer_free(t);
    write_file(folder, "chat_template.jinja", "new");
    t = mt_tokenizer_open(folder);
    assert_string_equal(mt_tokenizer_chat_template(t), "new");
    mt_tokenizer_free(t);
    write_file(folder, "generation_config.json", "{");
    assert_null(mt_tokenizer_open(folder));
    mtt_failed(MT_ERR_FORMAT, "generation_config.json");
    write_file(folder, "tokenizer.json", "version https://git-lfs.github.com/spec/v1");
    assert_null(mt_tokenizer_open(folder));
    mtt_failed(MT_ERR_FORMAT, "tokenizer.json: is a Git LFS pointer");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* ---- refused memory ---- */

/* Opens a file, divides a text and joins it again, as a whole and as a stream. */
static mt_status whole_life(const char *text)
{
    mt_token_list ids = {0};
    mt_text out = {0};
    mt_tokenizer *t = mti_tokenizer_parse("text", text, strlen(text));
    mt_token_stream *s = t ? mt_token_stream_new(t, true) : NULL;
    static const char words_of[] = "Unable low \xC3\xA9\xFF<s> lower \xE2\x82\xAC ab";
    mt_status status =
        s ? mt_tokenizer_encode(t, words_of, sizeof words_of - 1, true, &ids) : mt_last_status();
    if (status == MT_OK) status = mt_tokenizer_decode(t, ids.at, ids.n, true, &out);
    for (size_t i = 0; i < ids.n && status == MT_OK; i++)
        status = mt_token_stream_next(s, ids.at[i], &out);
    if (status == MT_OK) status = mt_token_stream_end(s, &out);
    mt_token_list_free(&ids), mt_text_free(&out);
    mt_token_stream_free(s), mt_tokenizer_free(t);
    return status;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    static const char *const texts[] = {letters, pieces, words};
    for (size_t k = 0; k < 3; k++) {
        char *text = quoted(texts[k]);
        uint64_t n_refused = 0;
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = whole_life(text);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) assert_int_equal(status, MT_ERR_MEMORY);
            if (status != MT_OK) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
            n_refused += status != MT_OK;
        }
        assert_true(n_refused > (mtt_long() ? 100 : 30));
        free(text);
    }
}

static int set_up(void **state)
{
    json_set_alloc_funcs(mti_json_malloc, mti_free);
    return mtt_open_device(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(merges_apply_by_rank_and_bytes_come_back),
        mtt_test(a_vocabulary_answers_both_ways),
        mtt_test(each_part_that_is_not_utf8_becomes_one_replacement),
        mtt_test(added_tokens_take_blanks_or_stand_alone_as_they_say),
        mtt_test(bytes_stand_for_characters_without_a_token),
        mtt_test(a_stream_gives_whole_characters_as_soon_as_it_can),
        mtt_test(words_are_their_longest_pieces),
        mtt_test(a_word_of_a_million_letters_is_merged),
        mtt_test(a_damaged_or_unknown_file_is_refused_by_name),
        mtt_test(an_added_token_has_a_most_of_bytes),
        mtt_test(a_text_that_is_no_json_is_refused),
        mtt_test(patterns_that_pcre2_reads_otherwise_are_refused),
        mtt_test(blanks_of_a_pattern_are_unicodes),
        mtt_test(a_pattern_that_backtracks_without_end_is_an_error),
        mtt_test(a_folder_says_what_ends_a_text_and_has_a_template),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("tokens", tests, set_up, mtt_close_device);
}
