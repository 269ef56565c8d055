-- Which tables in which cluster these are; empty: not known yet. A dump that is restored has the
-- rows of the old ones, transaction ids among them, and none of what was committed later.
ALTER TABLE store ADD COLUMN origin text NOT NULL DEFAULT '';
